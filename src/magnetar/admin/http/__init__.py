"""The HTTP side of the admin interface: from requests to handlers, from results to answers, and its description."""
