//! Asynchronous events.

use invar_core::roce::NakCode;

use super::Device;

/// The object that an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A queue pair, by its number.
    Qp(u32),
    /// A shared receive queue.
    Srq(u32),
}

/// An asynchronous event, with the code of `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncEvent {
    /// The queue pair failed: its completion queue overflowed, or its own memory is missing.
    QpFatal = 1,
    /// The peer made an invalid request.
    QpRequestError = 2,
    /// The peer asked for memory that it may not access.
    QpAccessError = 3,
    /// The queue pair is in state SQD, and no send that has begun is left.
    SqDrained = 5,
    /// The shared receive queue has fewer receives than its limit.
    SrqLimit = 15,
    /// The queue pair takes no more receives from its shared queue.
    LastWqeReached = 16,
}

impl Device {
    /// Takes the asynchronous events since the last call.
    pub fn take_notices(&mut self) -> std::vec::Drain<'_, (Subject, AsyncEvent)> {
        self.notices.drain(..)
    }
}

impl From<NakCode> for AsyncEvent {
    fn from(code: NakCode) -> Self {
        match code {
            NakCode::RemoteAccessError => AsyncEvent::QpAccessError,
            NakCode::RemoteOperationalError => AsyncEvent::QpFatal,
            _ => AsyncEvent::QpRequestError,
        }
    }
}
