//! Part of building.
