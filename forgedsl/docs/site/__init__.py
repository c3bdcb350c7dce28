"""Builds the documentation as a static site: `python -m forgedsl.docs.site` (`make site`).

    docs/, README.md, pipelines/  --staging-->  build/site/docs  --Zensical-->  site/

`generated` writes the pages of rules, pipelines and linked source files, `links` checks every link
of the result.
"""
