//! The levels of the flight recorder.

/// The part of an end's life that the flight recorder keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlightRecorder {
    /// The recorder keeps nothing.
    #[default]
    Off,
    /// The recorder keeps events and numbers, which cost the calls of the program nothing.
    Events,
    /// The recorder also keeps the times of the last messages, for which each call reads the clock.
    Messages,
}
