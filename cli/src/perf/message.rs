//! The messages between client and server. Each is one line of JSON.

use std::net::IpAddr;

use invar::Handle;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::about::About;
use super::operation::Op;
use crate::size::MESSAGE_BYTES_MAX;

/// A message from the client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say")]
pub(super) enum Request {
    /// Starts a session: the values that all passes share.
    Setup(Setup),
    /// Asks the server to take part in a pass.
    Pass(Pass),
    /// Tells the server that a pass over a queue pair goes on.
    Going,
    /// Ends a pass over a queue pair: all requests of the client are done.
    End,
    /// Ends the session, or the call of a client that asks for nothing.
    Bye,
}

/// A message from the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say")]
pub(super) enum Reply {
    /// The first message, before the client asks for anything.
    Device {
        /// The transport of the server's device.
        transport: String,
        /// The devices that a client may ask for, at most [`OFFERS_MAX`].
        #[serde(default)]
        devices: Vec<Offer>,
        /// The server's version, clock and settings. An older server does not send them.
        #[serde(default)]
        about: Option<About>,
    },
    /// Answers a setup.
    Ready(Ready),
    /// The server is ready for the requests of a pass over a queue pair.
    Begun,
    /// Answers a pass.
    Done {
        /// How many bytes were wrong.
        wrong: u64,
        /// Processor time of the server's process in percent, after the lead. An older server does not
        /// tell.
        #[serde(default)]
        cpu_percent: Option<f64>,
    },
    /// Answers any message with a failure, and ends the session.
    Failed {
        /// The reason, in one line.
        text: String,
        /// Whether packets of the client's device arrived at the server's, if the server knows.
        #[serde(default)]
        has_heard: Option<bool>,
    },
}

/// Bytes of the longest name of a device that a client may ask for. Rails have the names of all their devices.
const NIC_NAME_MAX: usize = 256;

/// The most devices that a server offers. A line has room for their names.
pub(super) const OFFERS_MAX: usize = 32;

/// A device of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) transport: String,
    /// Whether only this host reaches the device.
    pub(crate) is_loopback: bool,
}

/// The setup of a session, as the client wants it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// The transport of the client's device.
    pub(super) transport: String,
    /// The device of the server that the client wants; `None` leaves it to the server.
    #[serde(default)]
    pub(super) nic: Option<String>,
    /// The seed of the patterns.
    pub(super) seed: u64,
    /// The operation of all passes.
    #[serde(default)]
    pub(super) op: Op,
    /// The handle by which the server sends messages to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<HandleHex>,
    /// The client's queue pair, for an operation other than messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue_pair: Option<Hex>,
    pub(super) qps: u16,
    pub(super) adaptive_routing: Option<bool>,
    /// Buffers of a grouped receive.
    pub(super) recvs: u16,
    /// Bytes of the longest message.
    pub(super) size_max: u32,
    /// Bytes of memory for messages to the server.
    pub(super) region_bytes: u64,
    /// Whether passes go both ways, so that messages to the client get as much memory.
    #[serde(default)]
    pub(super) both_ways: bool,
}

/// The server's answer to a setup.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// The handle by which the client sends messages to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<HandleHex>,
    /// The server's queue pair, for an operation other than messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue_pair: Option<Hex>,
    pub(super) nic: String,
    /// The address of the server's device.
    pub(super) address: IpAddr,
    /// Payload bytes of a packet that the server's device allows.
    pub(super) mtu: usize,
    /// How many messages may be under way.
    pub(super) requests_max: u16,
}

/// A pass: messages of one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Pass {
    /// The number of the pass, so that no pass takes another's bytes for its own.
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) size: u32,
    /// The number of messages, a multiple of the setup's `recvs`.
    pub(super) messages: u64,
    /// The messages before the timed ones.
    #[serde(default)]
    pub(super) lead: u64,
    /// Messages under way, each with a slot of memory; a multiple of `recvs`.
    pub(super) slots: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Messages go to the server, which checks every byte.
    Check,
    /// Messages go to the server, which checks both ends of each message.
    Stream,
    /// Messages go to the server and, at the same time, as many to the client. Both ends of each message are
    /// checked.
    Exchange,
    /// Single messages go to the server and back. Both ends of each message are checked.
    PingPong,
}

/// Bytes of memory for the messages under way. The memory fits the cache, since the software NIC touches
/// every byte. [`SLOTS_MIN`] messages, or a group of messages, may take more.
pub(super) const BUFFER_BYTES: usize = 4 << 20;
/// The least number of slots, for messages of any size.
pub(super) const SLOTS_MIN: usize = 2;

/// Bytes between the starts of two messages in memory. Two messages share no cache line.
pub(super) fn slot_bytes(size: u32) -> usize {
    (size as usize).max(1).next_multiple_of(64)
}

impl Setup {
    /// Refuses values that no client of `invar perf` sends, and those that take more than `memory_max` bytes.
    pub(super) fn check(&self, memory_max: u64) -> Result<(), String> {
        let recvs = usize::from(self.recvs);
        if !(1..=8).contains(&recvs) || self.size_max > MESSAGE_BYTES_MAX {
            return Err(format!("a setup of {recvs} times {} bytes", self.size_max));
        }
        if self.nic.as_ref().is_some_and(|name| name.len() > NIC_NAME_MAX) {
            return Err(format!("a setup for a device with a name of over {NIC_NAME_MAX} bytes"));
        }
        self.check_op()?;
        let slots = recvs.max(SLOTS_MIN) * slot_bytes(self.size_max);
        let fits = (1..=slots.max(BUFFER_BYTES) as u64).contains(&self.region_bytes);
        if !fits {
            return Err(format!("a setup with {} bytes", self.region_bytes));
        }
        let needed = self.region_bytes + self.outgoing_bytes();
        if needed > memory_max {
            let [needed, max] = [needed.div_ceil(1 << 20), memory_max >> 20];
            return Err(format!(
                "messages of this size take {needed} MiB of the server's memory, and a client may have {max} MiB: \
                 start the server by invar perf --server --client-memory {needed}M"
            ));
        }
        Ok(())
    }

    /// Bytes of memory for messages to the client. Both halves of a queue pair's memory are alike.
    pub(super) fn outgoing_bytes(&self) -> u64 {
        match self.both_ways || self.op != Op::Message {
            true => self.region_bytes,
            false => slot_bytes(self.size_max) as u64,
        }
    }

    /// Refuses a setup whose fields are not those of its operation.
    fn check_op(&self) -> Result<(), String> {
        let is_message = self.op == Op::Message;
        let fits = self.handle.is_some() == is_message && self.queue_pair.is_some() != is_message;
        if fits && (is_message || self.recvs == 1) {
            return Ok(());
        }
        Err(format!("a setup of --op {} with the fields of another", self.op.name()))
    }

    /// Refuses a pass that does not belong to this setup.
    pub(super) fn check_pass(&self, pass: &Pass) -> Result<(), String> {
        let Pass { size, messages, slots, kind, .. } = *pass;
        let (recvs, slots_max) = match kind {
            Kind::PingPong => (1, self.op.slots_each()),
            _ => (self.recvs, 256),
        };
        let grouped = |n: u64| n > 0 && n.is_multiple_of(u64::from(recvs));
        let bytes = u64::from(slots) * slot_bytes(size) as u64;
        if size > self.size_max
            || !grouped(messages)
            || !grouped(u64::from(slots))
            || slots > slots_max
            || kind == Kind::Exchange && !self.both_ways
            || kind == Kind::PingPong && self.op == Op::Write && size == 0
            || bytes > self.region_bytes
        {
            return Err(format!("a pass of {messages} times {size} bytes in {slots} slots"));
        }
        Ok(())
    }
}

/// Bytes as hex digits in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hex(pub(super) Vec<u8>);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&invar_core::hex::Hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        let mut bytes = vec![0; hex.len() / 2];
        let filled = invar_core::hex::fill(&hex, &mut bytes);
        filled.ok_or_else(|| de::Error::custom("bytes are pairs of hex digits"))?;
        Ok(Hex(bytes))
    }
}

/// A handle as hex digits in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandleHex(pub(super) Handle);

impl Serialize for HandleHex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.hex())
    }
}

impl<'de> Deserialize<'de> for HandleHex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        Handle::from_hex(&hex).map(HandleHex).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn setup() -> Setup {
        let address = "127.0.0.1:1".parse().unwrap();
        Setup {
            transport: String::new(),
            nic: None,
            seed: 1,
            op: Op::Message,
            handle: Some(HandleHex(Handle::new(address, invar::Wire::Invar, &[0xa5; 16]))),
            queue_pair: None,
            qps: 1,
            adaptive_routing: None,
            recvs: 4,
            size_max: 1000,
            region_bytes: 8 * 1024,
            both_ways: false,
        }
    }

    const MEMORY_MAX: u64 = 1 << 30;
    const PASS: Pass =
        Pass { number: 1, kind: Kind::Stream, size: 1000, messages: 16, lead: 0, slots: 8 };

    #[test]
    fn requests_survive_the_line() {
        let line = serde_json::to_string(&Request::Setup(setup())).unwrap();
        let Request::Setup(back) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!(back.handle, setup().handle);
        assert_eq!((back.seed, back.recvs, back.size_max), (1, 4, 1000));
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        let line = serde_json::to_string(&Request::Setup(setup())).unwrap();
        for (from, to) in [("a5a5", "a5"), ("a5a5", "a5xx"), ("a5a5", "a5a5a5"), ("a5a5", "aé5")] {
            let line = line.replacen(from, to, 1);
            assert!(serde_json::from_str::<Request>(&line).is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_request_makes_a_server_take_more_memory_than_ours_asks_for(
            recvs: u16, size_max: u32, region_bytes: u64, size: u32, messages: u64, slots: u16,
        ) {
            let any = Setup { recvs: recvs % 10, size_max, region_bytes, ..setup() };
            let fits = Setup { region_bytes: region_bytes % (64 << 20), ..setup() };
            for setup in [any, fits] {
                if setup.check(MEMORY_MAX).is_err() {
                    continue;
                }
                let group = usize::from(setup.recvs).max(SLOTS_MIN) * slot_bytes(setup.size_max);
                prop_assert!(setup.region_bytes <= group.max(BUFFER_BYTES) as u64);
                prop_assert!(setup.region_bytes <= MEMORY_MAX);
                let pass = Pass { size: size % 2000, messages, slots, ..PASS };
                if setup.check_pass(&pass).is_ok() {
                    let bytes = usize::from(slots) * slot_bytes(pass.size);
                    prop_assert!(bytes as u64 <= setup.region_bytes);
                }
            }
        }

        #[test]
        fn no_line_of_a_client_makes_a_server_panic(at: prop::sample::Index, byte: u8, cut: bool) {
            let mut line = serde_json::to_vec(&Request::Setup(setup())).unwrap();
            let at = at.index(line.len());
            line[at] = byte;
            line.truncate(if cut { at } else { line.len() });
            let line = String::from_utf8_lossy(&line);
            if let Ok(Request::Setup(setup)) = serde_json::from_str(&line) {
                let _ = setup.check(MEMORY_MAX).and_then(|()| setup.check_pass(&PASS));
            }
        }
    }

    #[test]
    fn a_client_gets_no_more_memory_than_the_server_allows() {
        const MIB: u64 = 1 << 20;
        let long = || Setup {
            recvs: 1,
            size_max: 100 << 20,
            region_bytes: 200 * MIB,
            both_ways: false,
            ..setup()
        };
        let pair =
            || Setup { op: Op::Read, handle: None, queue_pair: Some(Hex(vec![0; 8])), ..long() };
        for (setup, needed) in
            [(long(), 300), (Setup { both_ways: true, ..long() }, 400), (pair(), 400)]
        {
            assert_eq!(setup.check(needed * MIB), Ok(()));
            let error = setup.check(needed * MIB - 1).unwrap_err();
            assert!(error.ends_with(&format!("--client-memory {needed}M")), "{error}");
        }
    }

    #[test]
    fn passes_that_do_not_fit_their_setup_are_refused() {
        assert_eq!(setup().check(MEMORY_MAX), Ok(()));
        assert_eq!(setup().check_pass(&PASS), Ok(()));
        let exchange = Pass { kind: Kind::Exchange, ..PASS };
        assert_eq!(Setup { both_ways: true, ..setup() }.check_pass(&exchange), Ok(()));
        let ping_pong = Pass { kind: Kind::PingPong, slots: 1, messages: 3, ..PASS };
        assert_eq!(setup().check_pass(&ping_pong), Ok(()));
        for pass in [
            Pass { size: 1001, ..PASS },
            Pass { messages: 0, ..PASS },
            Pass { messages: 15, ..PASS },
            Pass { slots: 0, ..PASS },
            Pass { slots: 2, ..PASS },
            Pass { slots: 12, ..PASS },
            Pass { slots: 260, size: 1, ..PASS },
            Pass { slots: 4, ..ping_pong },
            Pass { kind: Kind::Exchange, ..PASS },
        ] {
            assert!(setup().check_pass(&pass).is_err(), "{pass:?}");
        }
        let pair = || Setup {
            op: Op::Write,
            handle: None,
            queue_pair: Some(Hex(vec![0; 8])),
            recvs: 1,
            ..setup()
        };
        assert_eq!(pair().check(MEMORY_MAX), Ok(()));
        assert_eq!(pair().check_pass(&ping_pong), Ok(()));
        assert!(pair().check_pass(&Pass { size: 0, ..ping_pong }).is_err());
        assert!(pair().check_pass(&Pass { slots: 2, ..ping_pong }).is_err());
        assert_eq!(
            Setup { op: Op::Send, ..pair() }.check_pass(&Pass { slots: 2, ..ping_pong }),
            Ok(())
        );
        for setup in [
            Setup { recvs: 2, ..pair() },
            Setup { queue_pair: None, ..pair() },
            Setup { handle: setup().handle, ..pair() },
            Setup { op: Op::Message, ..pair() },
            Setup { queue_pair: pair().queue_pair, ..setup() },
            Setup { recvs: 0, ..setup() },
            Setup { recvs: 9, ..setup() },
            Setup { size_max: u32::MAX, ..setup() },
            Setup { region_bytes: 0, ..setup() },
            Setup { region_bytes: 1 + BUFFER_BYTES as u64, ..setup() },
            Setup { region_bytes: u64::MAX, ..setup() },
        ] {
            assert!(setup.check(MEMORY_MAX).is_err(), "{setup:?}");
        }
    }
}
