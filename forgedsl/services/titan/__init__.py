"""Kind `titan`: a torchtitan model, trained or frozen."""
