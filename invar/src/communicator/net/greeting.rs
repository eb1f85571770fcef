//! The receiver's side of a connection that comes about.

use crate::raw::AnyRecv;
use crate::{Accepting, Device, Error, Handle, Listener, Settings};

/// Senders that may be about to connect: there is to be one, and it may have to try again.
const ACCEPTING_MAX: usize = 16;

/// Waits for the one sender that has the handle.
pub(super) struct Incoming {
    listener: Listener,
    accepting: Vec<Accepting>,
}

impl Incoming {
    pub(super) fn listen(device: &Device, settings: &Settings) -> Result<Self, Error> {
        Ok(Incoming { listener: Listener::bind(device, settings)?, accepting: Vec::new() })
    }

    pub(super) fn handle(&self) -> Handle {
        self.listener.handle()
    }

    /// The end of the first sender that is connected. One that gives up is sent away.
    pub(super) fn poll(&mut self) -> Result<Option<AnyRecv>, Error> {
        while self.accepting.len() < ACCEPTING_MAX
            && let Some(accepting) = self.listener.accept()?
        {
            self.accepting.push(accepting);
        }
        let mut end = None;
        self.accepting.retain_mut(|accepting| match accepting.poll_raw() {
            Ok(None) => true,
            Ok(Some(connected)) => {
                end.get_or_insert(connected);
                false
            }
            Err(error) => {
                log::warn!("a sender is sent away: {error}");
                false
            }
        });
        Ok(end)
    }
}
