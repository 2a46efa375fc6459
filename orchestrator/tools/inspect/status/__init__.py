"""What a run does now: the facts, gathered once for terminal and page, and the page that shows them live.

`facts` gathers, `terminal` draws for `temper status`, `live_page` serves `status.html`, `status.css` and `status.js`.
"""
