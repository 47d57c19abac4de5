"""The dashboard: web pages of the service, rendered on the server. Everything can be read and decided without scripts.

    pages      the routes, and the data for each page
    forms      logins, forms, and protection against forms sent by other sites (CSRF)
    looks      prepares runs, diffs and measurements for the templates
    texts      the texts, in English and Portuguese
    templates/ static/   no third-party assets, no build step, nothing inline: the content policy allows neither

Jinja2 escapes all text from guests and callers (autoescape is on for everything). Characters that would move or hide
text are made visible, and long text is cut. Pages need a login with a key; the scopes apply as over the API, because
the pages call the same functions.
"""
