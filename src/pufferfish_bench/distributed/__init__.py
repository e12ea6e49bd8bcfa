"""Several processes: the world, surgery across ranks, the network's cost model, and the lab of network namespaces."""
