//! Feeds bytes, in pieces of any size, to an end of a connection in setup. They are any bytes, or a
//! valid message with some bytes changed. The result is a comm or a lasting error, and no panic.
#![no_main]

use std::fmt::Debug;

use invar_core::auth::Session;
use invar_core::comm::{RecvBuf, SendBuf};
use invar_core::conn::wire::MESSAGE_BYTES_MAX;
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, Wire};
use invar_core::error::Error;
use invar_core::nic::Nic;
use invar_simulator::null::NullNic;
use invar_simulator::pipe::Pipe;
use libfuzzer_sys::fuzz_target;

/// The choices of the fuzzer.
struct Plan<'a> {
    settings: CommSettings,
    to_connector: bool,
    changed: bool,
    piece_bytes: usize,
    data: &'a [u8],
}

fn connector(settings: CommSettings) -> (Connector<NullNic, Pipe>, Pipe) {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let pd = nic.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    (Connector::new(nic, pd, here, None, settings, 0), there)
}

fn acceptor(settings: CommSettings) -> (Acceptor<NullNic, Pipe>, Pipe) {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let pd = nic.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    (Acceptor::new(nic, pd, here, Session::UNKNOWN_PEER, settings, 0), there)
}

fn all_of(pipe: &mut Pipe) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let n = pipe.recv(&mut bytes).expect("a message");
    bytes.truncate(n);
    bytes
}

/// The bytes that a correct peer sends to this end.
fn sound(plan: &Plan<'_>) -> Vec<u8> {
    let (mut connector, mut from_connector) = connector(plan.settings);
    let _ = connector.poll(0).expect("no error");
    let message = all_of(&mut from_connector);
    if !plan.to_connector {
        // The connector's second message is the ready word.
        return [message, 1u32.to_ne_bytes().to_vec()].concat();
    }
    let (mut acceptor, mut from_acceptor) = acceptor(plan.settings);
    from_acceptor.send(&message).expect("a pipe");
    let _ = acceptor.poll(0).expect("no error");
    all_of(&mut from_acceptor)
}

fn bytes(plan: &Plan<'_>) -> Vec<u8> {
    if !plan.changed {
        return plan.data.to_vec();
    }
    let mut bytes = sound(plan);
    for change in plan.data.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    bytes
}

/// Feeds the peer's bytes to `step` until `step` returns a result or an error.
fn feed<T: Debug + PartialEq>(
    plan: &Plan<'_>,
    mut there: Pipe,
    mut step: impl FnMut() -> Result<Option<T>, Error>,
) {
    for piece in bytes(plan).chunks(plan.piece_bytes) {
        // An end that has failed may have closed its pipe.
        let _ = there.send(piece);
        match step() {
            Ok(None) => {}
            Ok(Some(_)) => return,
            Err(error) => {
                assert_eq!(step(), Err(error), "an error stays");
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
    drop(there);
    // Three calls suffice: the first may return the comm, the second makes the comm's first call, the
    // third sees the closed peer.
    let over = (0..3).any(|_| !matches!(step(), Ok(None)));
    assert!(over, "a peer that has closed is awaited");
}

fuzz_target!(|data: &[u8]| {
    let Some(([flags, piece], data)) = data.split_first_chunk() else { return };
    let plan = Plan {
        settings: CommSettings {
            wire: if flags & 1 == 0 { Wire::Invar } else { Wire::Nccl214 },
            qps: if flags & 8 == 0 { 1 } else { 5 },
            fifo_depth: 4,
            ..CommSettings::default()
        },
        to_connector: flags & 2 != 0,
        changed: flags & 4 != 0,
        piece_bytes: usize::from(*piece) * 4 + 1,
        data,
    };
    // On NCCL's wire the rest of the exchange happens in the first calls of the comm.
    if plan.to_connector {
        let (mut connector, there) = connector(plan.settings);
        let mut send = None;
        feed(&plan, there, || match &mut send {
            None => {
                send = connector.poll(0)?;
                Ok(None)
            }
            Some(send) => match send.isend(&SendBuf::default(), 0)? {
                None => send.check_peer(0).map(|()| None),
                sent => Ok(sent),
            },
        });
    } else {
        let (mut acceptor, there) = acceptor(plan.settings);
        let room = RecvBuf { addr: 4096, len: 1, tag: 0, rkey: 1 };
        let mut recv = None;
        feed(&plan, there, || match &mut recv {
            None => {
                recv = acceptor.poll(0)?;
                Ok(None)
            }
            Some(recv) => recv.irecv(&[room]),
        });
    }
});
