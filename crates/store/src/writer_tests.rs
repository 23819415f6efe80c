//! Groups, bounds and healing of the writer.
