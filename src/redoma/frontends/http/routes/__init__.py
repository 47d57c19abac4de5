"""The routes, one file per kind of resource. `app.ROUTES` lists them."""
