//! The levels of the flight recorder.

/// The part of an end's life that the flight recorder keeps. The numbers are the levels of `INVAR_RECORDER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlightRecorder {
    /// The recorder keeps nothing.
    #[default]
    Off = 0,
    /// The recorder keeps events and numbers, which cost the calls of the program nothing.
    Events = 1,
    /// The recorder also keeps the times of the last messages. A call reads the clock if it asks for a message, or if
    /// it finds one done.
    Messages = 2,
}
