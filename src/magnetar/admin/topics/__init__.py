"""Routes of topics: their existence, messages, subscriptions, statistics, schemas and segments."""
