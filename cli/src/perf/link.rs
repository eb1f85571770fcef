//! The two connections between client and server, and the memory of their messages.

use invar::{
    Connecting, Device, DeviceKind, Handle, Listener, MemoryRegion, RecvComm, Request, SendComm,
    Settings, Wire,
};

use crate::failure::Failure;

/// The connections to the peer and from the peer.
pub(super) struct Link {
    pub(super) send: SendComm,
    pub(super) recv: RecvComm,
    pub(super) outgoing: MemoryRegion,
    pub(super) incoming: MemoryRegion,
    /// Buffers of a grouped receive.
    pub(super) recvs: usize,
    /// Whether a grouped receive tells sizes, and not only which messages are empty.
    tells_sizes: bool,
    /// Whether messages move only while they are tested, as over TCP.
    pub(super) moves_in_calls: bool,
    /// The seed of the patterns.
    pub(super) seed: u64,
    /// Room for the requests of a pass, so that a timed pass allocates nothing.
    pub(super) requests: Vec<Option<Request>>,
    /// Room for the requests of receives, in a pass that goes both ways.
    pub(super) receives: Vec<Option<Request>>,
    /// The empty message by which the server said that it has all messages of the last pass.
    pub(super) all_there: Option<Request>,
}

/// The parts of a link.
pub(super) struct Plan<'a> {
    pub(super) device: &'a Device,
    pub(super) settings: &'a Settings,
    /// The listener to which the peer sends.
    pub(super) listener: &'a Listener,
    /// The handle of the peer's listener.
    pub(super) peer: Handle,
    pub(super) outgoing_bytes: usize,
    pub(super) incoming_bytes: usize,
    pub(super) recvs: u16,
    pub(super) seed: u64,
    /// Whether the call to the peer fails only when `pause` ends it, so that the peer's end of the other connection
    /// does not show when the call failed.
    pub(super) hides_failures: bool,
}

impl Plan<'_> {
    /// Connects both ways. Meanwhile it calls `pause` again and again, whose error ends it.
    pub(super) fn connect(
        &self,
        mut pause: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Link, Failure> {
        let outgoing = MemoryRegion::new(self.device, self.outgoing_bytes)?;
        let incoming = MemoryRegion::new(self.device, self.incoming_bytes)?;
        let (mut connecting, mut broken) = (None, None);
        let (mut accepting, mut send, mut recv) = (None, None, None);
        loop {
            if send.is_none() && broken.is_none() {
                match self.call(&mut connecting) {
                    Ok(polled) => send = polled,
                    Err(failure) if self.hides_failures => broken = Some(failure),
                    Err(failure) => return Err(failure),
                }
            }
            match &mut accepting {
                None => accepting = self.listener.accept()?,
                Some(peer) if recv.is_none() => recv = peer.poll()?,
                Some(_) => {}
            }
            (send, recv) = match (send, recv) {
                (Some(send), Some(recv)) => {
                    return Ok(Link {
                        send,
                        recv,
                        outgoing,
                        incoming,
                        recvs: usize::from(self.recvs),
                        tells_sizes: self.recvs == 1 || self.settings.wire() == Wire::Invar,
                        moves_in_calls: self.device.info().kind == DeviceKind::Socket,
                        seed: self.seed,
                        requests: Vec::with_capacity(256),
                        receives: Vec::with_capacity(256),
                        all_there: None,
                    });
                }
                some => some,
            };
            if let Err(over) = pause() {
                return Err(broken.unwrap_or(over));
            }
        }
    }

    /// Calls the peer, or continues the call.
    fn call(&self, connecting: &mut Option<Connecting>) -> Result<Option<SendComm>, Failure> {
        let connecting = match connecting {
            Some(connecting) => connecting,
            None => connecting.insert(SendComm::connect(self.device, &self.peer, self.settings)?),
        };
        Ok(connecting.poll()?)
    }
}

impl Link {
    /// A failure of the control connection, with both ends of the link.
    pub(super) fn uncontrolled(&self, failure: Failure) -> Failure {
        Failure::new(format_args!("{}: {failure}", self.recv.ends()))
    }

    /// The size that a receive reports for a message of `size` bytes.
    pub(super) fn told(&self, size: u32) -> u32 {
        if self.tells_sizes { size } else { size.min(1) }
    }
}
