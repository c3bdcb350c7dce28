"""Calls rewards and plays environments before a run, with answers made for the purpose.

    rows, Python of a reward --answers.py--> right, wrong and odd answers
    reward  --rewards.py--> RewardCalls      in the process of a run (`RewardProcess`), confined
    environment --games.py--> EnvironmentPlays

`lint --deep` tells what follows from the results (rules X850 and following).
"""
