//! Calls a listener again that refuses, or whose host cannot be reached yet, as NCCL does
//! (`socket.cc socketConnectCheck`).

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use invar_core::conn::StreamError;

use super::{Congestion, OobStream, is_unreachable, new_socket, os};
use crate::fork::NotInherited;

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
    /// [`poll_connected`] calls again after a growing pause. It does so for `within`, the time for connecting, while
    /// the host does not answer, and for a tenth of that time after other errors, but never for more than 60 s. The
    /// error of the last call is the error of the connection. Each call has a socket of its own, to which `data`
    /// applies.
    ///
    /// [`poll_connected`]: invar_core::conn::Stream::poll_connected
    pub fn connect_within(
        addr: SocketAddr,
        within: Duration,
        data: Option<DataSettings>,
    ) -> Result<Self, StreamError> {
        let (begun, pause) = (Instant::now(), PAUSE[0]);
        let mut retry = Retry { begun, within, data, failed: None, next: None, pause };
        let (mut stream, failed) = retry.call(addr)?;
        if let Some(error) = failed {
            retry.note(error, begun);
            retry.check(addr, begun)?;
        }
        stream.retry = Some(Box::new(retry));
        Ok(stream)
    }

    /// Whether this stream pauses before its next call, so that only time ends the pause.
    pub(crate) fn is_pausing(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.next.is_some())
    }
}

impl Retry {
    /// Continues the calls, and returns whether one is answered.
    pub(super) fn poll(&mut self, stream: &mut OobStream) -> Result<bool, StreamError> {
        let (addr, now) = (stream.peer, Instant::now());
        let failed = match self.next {
            Some(next) if now < next => None,
            Some(_) => {
                let (new, failed) = self.call(addr)?;
                let OobStream { stream: socket, silence, error, .. } = new;
                (stream.stream, stream.silence, stream.error) = (socket, silence, error);
                self.next = None;
                failed
            }
            None => match stream.poll_call() {
                Ok(true) => return Ok(true),
                Ok(false) => None,
                Err(error) => Some(error),
            },
        };
        if let Some(error) = failed {
            log::debug!("calling {addr}: {error}");
            self.note(error, now);
            // The kernel may have connected the old socket to itself, and then it has the listener's port.
            stream.stream = NotInherited::new(new_socket(addr).map_err(os)?.into());
        }
        self.check(addr, now)?;
        Ok(false)
    }

    /// Calls on a new socket. Returns the stream, and the call's error if it failed at once.
    fn call(&self, addr: SocketAddr) -> Result<(OobStream, Option<StreamError>), StreamError> {
        let (mut stream, failed) = OobStream::call(addr)?;
        if let Some(data) = &self.data {
            data.apply(&mut stream).map_err(os)?;
        }
        Ok((stream, failed))
    }

    /// Takes note of a call that failed, and begins a pause.
    fn note(&mut self, error: StreamError, now: Instant) {
        (self.failed, self.next) = (Some(error), Some(now + self.pause));
        self.pause = (2 * self.pause).min(PAUSE[1]);
    }

    /// Returns the error of the last call, once no further call is due.
    fn check(&self, addr: SocketAddr, now: Instant) -> Result<(), StreamError> {
        let Some(error) = self.failed else { return Ok(()) };
        let limit = match self.next {
            // A call under way may still be answered.
            None => self.within,
            Some(_) if !may_pass(&error, addr) => Duration::ZERO,
            Some(_) if is_silent(&error) => self.within.min(RETRY_MAX),
            Some(_) => (self.within / REFUSED_PART).min(RETRY_MAX),
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

/// Whether the host did not answer, as while its link or its entry in the ARP table comes up.
fn is_silent(error: &StreamError) -> bool {
    matches!(error, StreamError::Os(libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ETIMEDOUT))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use invar_core::conn::{AwaitedStream, Stream};
    use invar_core::param::PortRange;
    use invar_test_wait::until;
    use socket2::SockRef;

    use super::*;
    use crate::interest::Interest;
    use crate::tcp::OobListener;

    const LONG: Duration = Duration::from_secs(600);

    /// An address at which nobody listens.
    fn nobody() -> SocketAddr {
        OobListener::bind("127.0.0.1:0".parse().unwrap(), PortRange::ANY)
            .and_then(|listener| listener.local_addr())
            .unwrap()
    }

    fn data() -> DataSettings {
        DataSettings { silence: Duration::from_secs(7), congestion: Congestion::default() }
    }

    #[test]
    fn a_caller_that_is_refused_reaches_a_listener_that_comes_late() {
        let addr = nobody();
        let mut caller = OobStream::connect_within(addr, LONG, Some(data())).unwrap();
        let mut interest = Interest::default();
        while caller.retry.as_ref().unwrap().pause < 4 * PAUSE[0] {
            interest.begin();
            assert_eq!(caller.poll_connected(), Ok(false));
            interest.awaited([AwaitedStream::Room(&caller)]);
            assert_eq!(interest.is_blind(), caller.is_pausing(), "only time ends a pause");
            thread::yield_now();
        }
        let listener = OobListener::bind(addr, PortRange::ANY).unwrap();
        until("connecting", || {
            interest.begin();
            let is_up = caller.poll_connected().unwrap();
            if !is_up {
                interest.awaited([AwaitedStream::Room(&caller)]);
                interest.sleep(Duration::from_millis(1));
            }
            is_up
        });
        until("accepting", || listener.accept().unwrap());
        assert_eq!(caller.poll_connected(), Ok(true), "it stays up");
        let socket = SockRef::from(&caller.stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), None, "the settings are those of the first");
    }

    #[test]
    fn a_refusal_is_the_error_after_a_tenth_of_the_time_for_connecting() {
        let within = Duration::from_secs(3);
        let begun = Instant::now();
        let mut caller = OobStream::connect_within(nobody(), within, None).unwrap();
        let error = until("the refusal", || caller.poll_connected().err());
        assert_eq!(error, StreamError::Os(libc::ECONNREFUSED));
        assert!((within / 10..within).contains(&begun.elapsed()), "{:?}", begun.elapsed());
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
            (libc::ENETUNREACH, far, secs(30), secs(3)),
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
