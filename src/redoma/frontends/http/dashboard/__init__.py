"""The dashboard: the service as pages, for people. Server-rendered; everything can be read and decided without scripts.

    pages      the addresses, and what each page is given
    forms      logins, forms, and what keeps other sites from sending them (CSRF)
    looks      from runs, diffs and numbers to what templates draw
    texts      the words, in English and Portuguese
    templates/ static/   no third-party assets, no build step, nothing inline: the content policy allows neither

What came from a guest or a caller is escaped by Jinja2 (autoescape is on for everything), made visible where it would
move or hide text, and cut where it is too long to read. Pages are behind a login with a key; the same scopes count as
over the API, as the same functions are called.
"""
