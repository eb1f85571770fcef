//! Both ends of a connection that comes about.
//!
//! The receiver listens, and its address goes to the sender by the caller's ways. Who has
//! connected says first what only that address tells: nobody else becomes the sender.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use invar_core::conn::HANDLE_BYTES;

use super::ring::Ring;
use super::wire::{RecvWire, SendWire};
use crate::error::Kind;
use crate::{Accepting, Connecting, Device, Error, Handle, Listener, SendComm, Settings};

const TOKEN_BYTES: usize = 16;
/// Bytes of an [`Address`].
pub const ADDRESS_BYTES: usize = HANDLE_BYTES + TOKEN_BYTES;
/// Most callers that are listened to at a time.
const CALLERS_MAX: usize = 16;

/// Where a receiving end listens, and what it is to be told first. Whoever has it may connect, so
/// it goes to the sender alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address(pub [u8; ADDRESS_BYTES]);

impl Address {
    fn new(handle: &Handle) -> Result<Self, Error> {
        let mut address = [0; ADDRESS_BYTES];
        let (start, token) = address.split_at_mut(HANDLE_BYTES);
        start.copy_from_slice(handle.as_bytes());
        let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(token));
        random.map_err(|error| Error::io("reading /dev/urandom", error))?;
        Ok(Address(address))
    }

    fn handle(&self) -> Handle {
        let mut handle = [0; HANDLE_BYTES];
        handle.copy_from_slice(&self.0[..HANDLE_BYTES]);
        Handle::from_bytes(handle)
    }

    fn token(&self) -> &[u8] {
        &self.0[HANDLE_BYTES..]
    }
}

/// The sender's side.
pub(super) struct Outgoing {
    address: Address,
    stage: Stage,
}

enum Stage {
    Calling(Connecting),
    Saying(SendWire),
    Said,
}

impl Outgoing {
    pub(super) fn start(
        device: &Device,
        address: Address,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let connecting = SendComm::connect(device, &address.handle(), settings)?;
        Ok(Outgoing { address, stage: Stage::Calling(connecting) })
    }

    /// The end, once it is connected and has said its token.
    pub(super) fn poll(
        &mut self,
        ring: impl FnOnce() -> Result<Arc<Ring>, Error>,
    ) -> Result<Option<SendWire>, Error> {
        if let Stage::Calling(connecting) = &mut self.stage {
            let Some(end) = connecting.poll_raw()? else { return Ok(None) };
            self.stage = Stage::Saying(SendWire::new(end.boxed(), ring()?)?);
        }
        let Stage::Saying(wire) = &mut self.stage else { return Ok(None) };
        if !wire.say(self.address.token())? {
            return Ok(None);
        }
        match std::mem::replace(&mut self.stage, Stage::Said) {
            Stage::Saying(wire) => Ok(Some(wire)),
            _ => Ok(None),
        }
    }
}

/// The receiver's side.
pub(super) struct Incoming {
    listener: Listener,
    address: Address,
    callers: Vec<Caller>,
}

enum Caller {
    Accepting(Accepting),
    Hearing(RecvWire),
}

impl Incoming {
    pub(super) fn listen(device: &Device, settings: &Settings) -> Result<Self, Error> {
        let listener = Listener::bind(device, settings)?;
        let address = Address::new(&listener.handle())?;
        Ok(Incoming { listener, address, callers: Vec::new() })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The end to which a caller has said the token. A caller that is none of ours is sent away.
    pub(super) fn poll(
        &mut self,
        ring: impl Fn() -> Result<Arc<Ring>, Error>,
    ) -> Result<Option<RecvWire>, Error> {
        self.listener.accept_among(&mut self.callers, CALLERS_MAX, Caller::is_silent)?;
        let mut at = 0;
        while at < self.callers.len() {
            match self.callers[at].poll(self.address.token(), &ring) {
                Ok(false) => at += 1,
                Ok(true) => {
                    if let Caller::Hearing(wire) = self.callers.remove(at) {
                        return Ok(Some(wire));
                    }
                }
                Err(error) => {
                    log::warn!("a caller is sent away: {error}");
                    self.callers.remove(at);
                }
            }
        }
        Ok(None)
    }
}

impl From<Accepting> for Caller {
    fn from(accepting: Accepting) -> Self {
        Caller::Accepting(accepting)
    }
}

impl Caller {
    /// Whether it was listened to, and has not said who it is: who has the address says the token as
    /// soon as it is connected.
    fn is_silent(&self) -> bool {
        match self {
            Caller::Accepting(accepting) => accepting.is_silent(),
            Caller::Hearing(_) => true,
        }
    }

    /// Whether it has said the token.
    fn poll(
        &mut self,
        token: &[u8],
        ring: impl Fn() -> Result<Arc<Ring>, Error>,
    ) -> Result<bool, Error> {
        if let Caller::Accepting(accepting) = self {
            let Some(end) = accepting.poll_raw()? else { return Ok(false) };
            *self = Caller::Hearing(RecvWire::new(end.boxed(), ring()?)?);
        }
        let Caller::Hearing(wire) = self else { return Ok(false) };
        match wire.hear(token)? {
            None => Ok(false),
            Some(true) => Ok(true),
            Some(false) => {
                let text = "it does not know what the receiver's address tells";
                Err(Kind::Proxy(text.to_owned()).into())
            }
        }
    }
}
