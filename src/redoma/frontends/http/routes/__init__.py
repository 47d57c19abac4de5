"""What has an address under /v1: one file each. `app.ROUTES` lists them."""
