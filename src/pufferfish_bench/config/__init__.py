"""Settings: their types, a run's identity, and building objects from them. Only this package and cli/ import Hydra."""
