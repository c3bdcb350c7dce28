autocmd BufNewFile,BufRead *.forge setfiletype forge
