//! A connection between two ports that a test disturbs, with memory at both ends.

use invar_core::comm::{RecoveryStage, Request};
use invar_core::conn::CommSettings;
use invar_core::error::Error;
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

/// The bytes of a message of [`Line::isend`].
pub(crate) const MESSAGE_BYTES: usize = 64;

/// Both ends of a connection, and its time.
pub(crate) struct Line {
    /// The ports of the sender and of the receiver.
    pub(crate) nics: [Meddler; 2],
    pub(crate) duo: Duo<Meddler>,
    pub(crate) from: Buffer<Meddler>,
    pub(crate) to: Buffer<Meddler>,
    pub(crate) now_ns: u64,
}

impl Line {
    /// Connects two ports, with 4 KiB of memory at each end.
    pub(crate) fn new(settings: [CommSettings; 2]) -> Self {
        Line::with(settings, 4096)
    }

    /// Connects two ports, with so many bytes of memory at each end.
    pub(crate) fn with(settings: [CommSettings; 2], bytes: usize) -> Self {
        Line::on(NullNic::ports().map(Meddler::new), settings, bytes)
    }

    /// Connects these two ports, with so many bytes of memory at each end.
    pub(crate) fn on(nics: [Meddler; 2], settings: [CommSettings; 2], bytes: usize) -> Self {
        let duo = duo::connect(nics.each_ref(), settings, || {}).expect("a connection");
        let from = Buffer::new(&nics[0], &duo.send_pd, bytes);
        let to = Buffer::new(&nics[1], &duo.recv_pd, bytes);
        Line { nics, duo, from, to, now_ns: 5_000_000_000 }
    }

    /// Posts a receive of the message of `place`.
    #[track_caller]
    pub(crate) fn irecv(&mut self, place: usize) -> Request {
        self.duo.irecv(&[self.to.room(MESSAGE_BYTES * place, MESSAGE_BYTES as u32, 0)])
    }

    /// Starts to send the message of `place`. Each byte of the message is `place + 1`.
    #[track_caller]
    pub(crate) fn isend(&mut self, place: usize) -> Request {
        self.try_isend(place).expect("a request")
    }

    /// Starts to send the message of `place`, unless the sender cannot send now.
    #[track_caller]
    pub(crate) fn try_isend(&mut self, place: usize) -> Option<Request> {
        let at = MESSAGE_BYTES * place;
        self.from.write(at, &[place as u8 + 1; MESSAGE_BYTES]);
        let message = self.from.message(at, MESSAGE_BYTES as u32);
        self.duo.send.isend(&message, 0).expect("isend")
    }

    /// Checks that a message has arrived.
    #[track_caller]
    pub(crate) fn check_arrived(&mut self, sent: &Request, received: &Request) {
        assert_eq!(self.duo.send.test(sent), Ok(Some(MESSAGE_BYTES as u32)));
        assert_eq!(self.duo.recv.test(received).map(|sizes| sizes.is_some()), Ok(true));
    }

    /// Lets the polls of both ends hold completions back, or not.
    pub(crate) fn hold(&self, holding: bool) {
        self.nics.iter().for_each(|nic| nic.plan.holding.set(holding));
    }

    /// Lets both ends go on for `ms` milliseconds.
    pub(crate) fn pass(&mut self, ms: u64) -> Result<(), Error> {
        for _ in 0..ms {
            self.now_ns += 1_000_000;
            self.duo.send.check_peer(self.now_ns)?;
            self.duo.recv.check_peer(self.now_ns)?;
        }
        Ok(())
    }

    /// The attempts of each end at new queue pairs.
    pub(crate) fn attempts(&self) -> [u32; 2] {
        [self.duo.send.attempts(), self.duo.recv.attempts()]
    }

    /// The stage of each end's recovery.
    pub(crate) fn stages(&self) -> [Option<RecoveryStage>; 2] {
        [self.duo.send.recovery_stage(), self.duo.recv.recovery_stage()]
    }
}
