//! Calls a listener again that refuses, or whose host cannot be reached yet, as NCCL does
//! (`socket.cc socketConnectCheck`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invar_core::conn::{AwaitedStream, StreamError};
use log::Level;

use super::{Congestion, OobStream, is_unreachable, new_socket, os};
use crate::fork::NotInherited;
use crate::interest::Interest;

/// The longest time for which a connection calls again. NCCL gives up after as long (`NCCL_SOCKET_RETRY_CNT`).
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The part of the time for connecting in which a refused call is repeated. The listener has usually gone, so the
/// program hears of it soon.
const REFUSED_PART: u32 = 10;

/// The first and the longest pause between two calls.
const PAUSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The settings of a socket that carries messages.
#[derive(Clone, Debug)]
pub struct DataSettings {
    /// Time after which this end gives up a silent host.
    pub silence: Duration,
    /// Congestion control of the bytes that this end sends.
    pub congestion: Congestion,
}

impl DataSettings {
    /// Prepares a new socket for a connection that carries messages. Each end has at least one socket on
    /// which it sends nothing, so that keepalive detects a vanished host. For the sender that is control,
    /// for the receiver main.
    pub(crate) fn apply(&self, stream: &mut OobStream) -> io::Result<()> {
        stream.bear_silence(self.silence)?;
        stream.wait_for_reader()?;
        self.congestion.control(stream)
    }
}

/// A connection's calls of its listener, until one is answered.
#[derive(Debug)]
pub(super) struct Retry {
    begun: Instant,
    /// The time for connecting.
    within: Duration,
    data: Option<DataSettings>,
    /// The error of the last call that failed.
    failed: Option<StreamError>,
    /// Time of the next call; `None` while a call is under way.
    next: Option<Instant>,
    pause: Duration,
}

impl OobStream {
    /// Starts to connect to `addr`, like [`OobStream::connect`]. While the call fails in a way that may pass,
    /// [`poll_connected`] calls again after a growing pause. If the host does not answer, it does so for `within`.
    /// After other errors it does so for a tenth of `within`. Both end after 60 s. Without a route there is one call.
    /// The error of the last call is the error of the connection.
    ///
    /// A call without an answer ends after [`SILENCE_MAX`](super::SILENCE_MAX). Once a call is answered, `data`
    /// applies to the connection.
    ///
    /// [`poll_connected`]: invar_core::conn::Stream::poll_connected
    pub fn connect_within(
        addr: SocketAddr,
        within: Duration,
        data: Option<DataSettings>,
    ) -> Result<Self, StreamError> {
        let (begun, pause) = (Instant::now(), PAUSE[0]);
        let mut retry = Retry { begun, within, data, failed: None, next: None, pause };
        let (mut stream, failed) = Self::call(addr)?;
        if let Some(error) = failed {
            retry.note(addr, error, begun)?;
        }
        stream.retry = Some(Box::new(retry));
        Ok(stream)
    }

    /// Whether this stream pauses before its next call, so that only time ends the pause.
    fn is_pausing(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.next.is_some())
    }
}

impl Interest {
    /// Arms a connection that can bring bytes.
    pub(crate) fn bytes(&mut self, stream: &OobStream) {
        self.numbered(stream, stream.id, false);
    }

    /// Arms a connection that can take bytes.
    pub(crate) fn room(&mut self, stream: &OobStream) {
        self.numbered(stream, stream.id, true);
    }

    /// Arms the streams for which an end waits while its connection is made. Only time ends the pause of a stream
    /// that will call again. Each call has a socket of its own, so each look needs a new interest.
    pub fn awaited<'a>(&mut self, awaited: impl IntoIterator<Item = AwaitedStream<'a, OobStream>>) {
        for stream in awaited {
            match stream {
                AwaitedStream::Bytes(stream) => self.readable(stream),
                AwaitedStream::Room(stream) if stream.is_pausing() => self.blind(),
                AwaitedStream::Room(stream) => self.writable(stream),
            }
        }
    }
}

impl Retry {
    /// Continues the calls, each on a socket of its own, and returns whether one is answered.
    pub(super) fn poll(&mut self, stream: &mut OobStream) -> Result<bool, StreamError> {
        let (addr, now) = (stream.peer, Instant::now());
        let failed = match self.next {
            Some(next) if now < next => None,
            Some(_) => {
                let (new, failed) = OobStream::call(addr)?;
                (stream.stream, stream.id, stream.error) = (new.stream, new.id, new.error);
                self.next = None;
                failed
            }
            None => match stream.poll_call() {
                Ok(true) => {
                    // Earlier, the settings would let a call outlast `SILENCE_MAX`.
                    if let Some(data) = &self.data {
                        data.apply(stream).map_err(os)?;
                    }
                    return Ok(true);
                }
                Ok(false) => None,
                Err(error) => Some(error),
            },
        };
        if let Some(error) = failed {
            self.note(addr, error, now)?;
            // The kernel may have connected the old socket to itself, and then it has the listener's port. If no
            // descriptor is left, the old socket stays until the next call.
            if let Ok(socket) = new_socket(addr) {
                stream.stream = Arc::new(NotInherited::new(socket.into()));
            }
        }
        self.check(addr, now)?;
        Ok(false)
    }

    /// Takes note of a call that failed, and begins a pause. Returns the error if no further call is due.
    fn note(
        &mut self,
        addr: SocketAddr,
        error: StreamError,
        now: Instant,
    ) -> Result<(), StreamError> {
        let level = if self.failed.is_none() { Level::Info } else { Level::Debug };
        (self.failed, self.next) = (Some(error), Some(now + self.pause));
        self.pause = (2 * self.pause).min(PAUSE[1]);
        self.check(addr, now)?;
        log::log!(level, "{addr}: {error}; this end calls again");
        Ok(())
    }

    /// Returns the error of the last call, once no further call is due.
    fn check(&self, addr: SocketAddr, now: Instant) -> Result<(), StreamError> {
        let Some(error) = self.failed else { return Ok(()) };
        let limit = match (self.next, error) {
            // A call under way may still be answered.
            (None, _) => self.within,
            // NCCL does not wait for a route either.
            (_, StreamError::Os(libc::ENETUNREACH | libc::ENETDOWN)) => Duration::ZERO,
            _ if !may_pass(&error, addr) => Duration::ZERO,
            // The host did not answer, as while its link or its entry in the ARP table comes up.
            _ if is_unreachable(&error) => self.within.min(RETRY_MAX),
            _ => (self.within / REFUSED_PART).min(RETRY_MAX),
        };
        if now.duration_since(self.begun) >= limit { Err(error) } else { Ok(()) }
    }
}

/// Whether a later call of `addr` may succeed after this error of a call. The listener or the network to another host
/// may come up soon.
pub(crate) fn may_pass(error: &StreamError, addr: SocketAddr) -> bool {
    match error {
        StreamError::Os(libc::ECONNREFUSED | libc::ECONNRESET) => true,
        error => is_unreachable(error) && !addr.ip().is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use invar_core::conn::Stream;
    use invar_core::param::PortRange;
    use invar_test_wait::until;
    use socket2::SockRef;

    use super::*;
    use crate::tcp::{OobListener, SILENCE_MAX};

    const LONG: Duration = Duration::from_secs(600);

    /// An address at which nobody listens. No two tests use the same host.
    fn nobody(host: u8) -> SocketAddr {
        OobListener::bind(([127, 61, 8, host], 0).into(), PortRange::ANY)
            .and_then(|listener| listener.local_addr())
            .unwrap()
    }

    fn user_timeout(stream: &OobStream) -> Option<Duration> {
        SockRef::from(&*stream.stream).tcp_user_timeout().unwrap()
    }

    fn data() -> DataSettings {
        DataSettings { silence: Duration::from_secs(7), congestion: Congestion::default() }
    }

    #[test]
    fn a_caller_that_is_refused_reaches_a_listener_that_comes_late() {
        let addr = nobody(3);
        let mut caller = OobStream::connect_within(addr, LONG, Some(data())).unwrap();
        while caller.retry.as_ref().unwrap().pause < 4 * PAUSE[0] {
            assert_eq!(caller.poll_connected(), Ok(false));
            let mut interest = Interest::default();
            interest.awaited([AwaitedStream::Room(&caller)]);
            assert_eq!(interest.is_blind(), caller.is_pausing(), "only time ends a pause");
            thread::yield_now();
        }
        let listener = OobListener::bind(addr, PortRange::ANY).unwrap();
        until("connecting", || {
            let is_up = caller.poll_connected().unwrap();
            if !is_up {
                let mut interest = Interest::default();
                interest.awaited([AwaitedStream::Room(&caller)]);
                let within = Duration::from_millis(if interest.is_blind() { 1 } else { 60_000 });
                assert_eq!(interest.sleep(within), !interest.is_blind(), "an answer is news");
            }
            is_up
        });
        until("accepting", || listener.accept().unwrap());
        assert_eq!(caller.poll_connected(), Ok(true), "it stays up");
        assert_eq!(user_timeout(&caller), None, "it has the settings of data");
    }

    #[test]
    fn a_call_ends_with_a_silent_host_although_a_connection_for_data_bears_it() {
        let listener = OobListener::bind("127.0.0.1:0".parse().unwrap(), PortRange::ANY).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut caller = OobStream::connect_within(addr, LONG, Some(data())).unwrap();
        assert_eq!(user_timeout(&caller), Some(SILENCE_MAX));
        until("connecting", || caller.poll_connected().unwrap());
        assert_eq!(user_timeout(&caller), None);
    }

    #[test]
    fn a_refusal_is_the_error_after_a_tenth_of_the_time_for_connecting() {
        let within = Duration::from_secs(3);
        let begun = Instant::now();
        let mut caller = OobStream::connect_within(nobody(4), within, None).unwrap();
        let error = until("the refusal", || caller.poll_connected().err());
        assert_eq!(error, StreamError::Os(libc::ECONNREFUSED));
        assert!(begun.elapsed() >= within / 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn silent_hosts_are_called_for_longer_than_hosts_that_refuse_and_others_once() {
        let [near, far] =
            ["127.0.0.1:1", "192.0.2.1:1"].map(|addr| addr.parse::<SocketAddr>().unwrap());
        let secs = Duration::from_secs;
        for (error, addr, within, lasts) in [
            (libc::EHOSTUNREACH, far, secs(30), secs(30)),
            (libc::ETIMEDOUT, far, secs(86_400), secs(60)),
            (libc::ECONNREFUSED, far, secs(30), secs(3)),
            (libc::ECONNRESET, near, secs(86_400), secs(60)),
            (libc::ENETUNREACH, far, secs(30), secs(0)),
            (libc::EHOSTUNREACH, near, secs(30), secs(0)),
            (libc::EADDRNOTAVAIL, far, secs(30), secs(0)),
        ] {
            let begun = Instant::now();
            let (failed, pause) = (Some(StreamError::Os(error)), PAUSE[0]);
            let (data, next) = (None, Some(begun));
            let retry = Retry { begun, within, data, failed, next, pause };
            let moment = Duration::from_millis(1);
            assert_eq!(retry.check(addr, begun + lasts).err(), failed, "{error}");
            if !lasts.is_zero() {
                assert_eq!(retry.check(addr, begun + lasts - moment), Ok(()), "{error}");
            }
            // A call under way is not cut short.
            let calling = Retry { next: None, ..retry };
            assert_eq!(calling.check(addr, begun + within - moment), Ok(()), "{error}");
            assert_eq!(calling.check(addr, begun + within).err(), failed, "{error}");
        }
    }
}
