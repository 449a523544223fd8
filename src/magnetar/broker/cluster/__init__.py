"""Several brokers as one cluster: which of them owns a bundle of topics, and how bundles move between them."""
