"""Routes of the cluster: brokers, bookies, tenants, namespaces, lookups, the metadata relay."""
