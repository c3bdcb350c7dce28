"""Calls rewards and plays environments before a run, with constructed answers.

    rows, Python of a reward --answers.py--> right, wrong and odd answers
    reward  --rewards.py--> RewardCalls      in the process of a run (`RewardProcess`), confined
    environment --games.py--> EnvironmentPlays

`lint --deep` reports the faults that the results show (rules X850 and following).
"""
