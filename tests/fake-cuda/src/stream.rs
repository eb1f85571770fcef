//! Streams and events of the stand-in.

use std::collections::{HashMap, VecDeque};

use crate::{Code, INVALID_HANDLE};

/// Streams and events take their numbers from one sequence, so a stream is never taken for an event.
#[derive(Default)]
pub(crate) struct Streams {
    streams: HashMap<usize, VecDeque<Operation>>,
    events: HashMap<usize, Event>,
    last: usize,
}

pub(crate) enum Operation {
    /// A copy between two addresses that the CPU can access.
    Copy {
        to: usize,
        from: usize,
        len: usize,
    },
    Event(usize),
}

/// An event. After it is recorded, it is done when its operation has left the stream.
#[derive(Default)]
struct Event {
    stream: Option<usize>,
    queries: u32,
}

impl Streams {
    pub(crate) fn create_stream(&mut self) -> usize {
        self.last += 1;
        self.streams.insert(self.last, VecDeque::new());
        self.last
    }

    pub(crate) fn create_event(&mut self) -> usize {
        self.last += 1;
        self.events.insert(self.last, Event::default());
        self.last
    }

    pub(crate) fn destroy_stream(&mut self, stream: usize) -> Result<(), Code> {
        self.finish(stream)?;
        self.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn destroy_event(&mut self, event: usize) -> Result<(), Code> {
        self.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn push(&mut self, stream: usize, operation: Operation) -> Result<(), Code> {
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.push_back(operation);
        Ok(())
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), Code> {
        let recorded = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        *recorded = Event { stream: Some(stream), queries: 0 };
        self.push(stream, Operation::Event(event))
    }

    /// Whether an event is done. Each time that the program has queried the event `queries` times, one
    /// operation of its stream happens.
    pub(crate) fn query(&mut self, event: usize, queries: u32) -> Result<bool, Code> {
        let asked = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        let Some(stream) = asked.stream else { return Ok(true) };
        asked.queries += 1;
        if asked.queries >= queries {
            asked.queries = 0;
            self.step(stream);
        }
        Ok(self.events[&event].stream.is_none())
    }

    pub(crate) fn finish(&mut self, stream: usize) -> Result<(), Code> {
        // The null stream has only copies of calls that wait for them.
        if stream != 0 && !self.streams.contains_key(&stream) {
            return Err(INVALID_HANDLE);
        }
        while self.step(stream) {}
        Ok(())
    }

    fn step(&mut self, stream: usize) -> bool {
        match self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
            Some(Operation::Copy { to, from, len }) => {
                let (to, from) = (to as *mut u8, from as *const u8);
                // SAFETY: the driver's caller keeps both ranges valid until the copy is done.
                unsafe { std::ptr::copy(from, to, len) };
                true
            }
            Some(Operation::Event(event)) => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.stream = None;
                }
                true
            }
            None => false,
        }
    }
}
