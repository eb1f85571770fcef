//! Plays one scenario, from new queue pairs to the record of what both ends saw.

use std::io::{self, ErrorKind};
use std::net::Ipv6Addr;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::error::status_name;
use invar_core::nic::{
    Access, Gid, Nic, QpOptions, RecvWr, RtsAttr, SendOpcode, SendWr, Wc, WcFlags, WcOpcode,
    WcStatus,
};

use super::control::Control;
use super::scenario::{Fault, Scenario};
use crate::end::{Address, End, Link};
use crate::pattern::pattern;

/// XOR with this constant changes a key into one that nobody has.
const NOBODYS_KEY: u32 = 0x5555_5500;
/// The time limit for completions that must come.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time to wait for completions that may come.
const QUIET: Duration = Duration::from_millis(200);
/// The delay of a late receive. The responder has sent its first RNR NAK long before.
const LATE: Duration = Duration::from_millis(30);
/// The RNR timer code of 40.96 ms, which is more than [`LATE`].
const RNR_TIMER: u8 = 24;
/// The RNR timer code of 0.64 ms, for scenarios where no receive ever comes.
const RNR_TIMER_SHORT: u8 = 12;

/// Plays one side of a scenario. Returns what the two sides saw.
pub(super) fn run<N: Nic + Clone>(
    nic: &N,
    control: &mut Control,
    scenario: &Scenario,
    asks: bool,
) -> io::Result<String> {
    let end = End::new(nic, scenario.region_bytes());
    end.buffer.write(0, &content(scenario, asks));
    let mut address = end.address();
    let local_only = scenario.is(Fault::RemoteRights).then(|| {
        let (mr, _, rkey) = end.register(&end.buffer.memory, Access::LOCAL_WRITE);
        address.rkey = rkey;
        mr
    });
    let peer = read_address(&control.swap(&write_address(&address))?)?;
    end.connect_to(&peer, &link(scenario));
    let seen = if asks {
        control.swap("ready")?;
        let asked = ask(&end, &peer, scenario);
        (asked.clone(), control.swap(&asked)?)
    } else {
        if !scenario.is(Fault::LateReceive) {
            post_receives(&end, scenario);
        }
        let end = (!scenario.is(Fault::NoQueuePair)).then_some(end);
        control.swap("ready")?;
        if scenario.is(Fault::LateReceive) {
            thread::sleep(LATE);
            end.iter().for_each(|end| post_receives(end, scenario));
        }
        let asked = control.recv()?;
        let answered = end.map_or_else(|| "nothing".to_owned(), |end| answer(&end, scenario));
        control.send(&answered)?;
        (asked, answered)
    };
    drop(local_only);
    Ok(format!("{} | {}", seen.0, seen.1))
}

/// The attributes of the connection. Options that only Invar's NICs can agree on are left out.
fn link(scenario: &Scenario) -> Link {
    let rts = Link::default().rts;
    let (rts, min_rnr_timer) = match scenario.fault {
        Some(Fault::NoReceive) => (RtsAttr { rnr_retry: 2, ..rts }, RNR_TIMER_SHORT),
        Some(Fault::NoQueuePair) => (RtsAttr { retry_cnt: 2, ..rts }, RNR_TIMER),
        Some(_) => (RtsAttr { timeout: 16, retry_cnt: 6, rnr_retry: 6, ..rts }, RNR_TIMER),
        // To rxe, `retry_cnt` 7 means forever. With fewer retries rxe gives up when 7 packets are lost
        // between two ACKs. It counts each as a retry, whatever has arrived before.
        None => (RtsAttr { timeout: 16, retry_cnt: 7, rnr_retry: 6, ..rts }, RNR_TIMER),
    };
    Link { mtu: scenario.mtu, options: QpOptions::empty(), rts, min_rnr_timer, ..Link::default() }
}

/// Posts the messages, and an empty WRITE behind messages that may fail. Returns what the asking end
/// sees.
fn ask<N: Nic + Clone>(end: &End<N>, peer: &Address, scenario: &Scenario) -> String {
    let count = scenario.count;
    let mut wrs: Vec<SendWr> = (0..count).map(|i| message(end, peer, scenario, i)).collect();
    if scenario.fault.is_some() {
        let last = end.work_at(SendOpcode::RdmaWrite, 0, peer);
        wrs.push(SendWr { wr_id: count as u64, ..last });
    }
    end.nic.post_send(&end.qp, &wrs).expect("posted");
    let seen = completions(end, wrs.len(), TIMEOUT);
    told(end, scenario, &seen, wrs.len(), true)
}

fn message<N: Nic + Clone>(
    end: &End<N>,
    peer: &Address,
    scenario: &Scenario,
    number: usize,
) -> SendWr {
    let Scenario { opcode, len, .. } = *scenario;
    let offset = number * len;
    let wr = SendWr {
        wr_id: number as u64,
        sge: end.sge(offset, len),
        remote_addr: peer.addr + offset as u64,
        ..end.work_at(opcode, len, peer)
    };
    match scenario.fault {
        Some(Fault::RemoteKey) => SendWr { rkey: wr.rkey ^ NOBODYS_KEY, ..wr },
        Some(Fault::RemoteRange) => {
            let behind = scenario.region_bytes() - len + 1;
            SendWr { remote_addr: peer.addr + behind as u64, ..wr }
        }
        _ => wr,
    }
}

fn post_receives<N: Nic + Clone>(end: &End<N>, scenario: &Scenario) {
    if !scenario.takes_receives() || scenario.is(Fault::NoReceive) {
        return;
    }
    let len = scenario.len - usize::from(scenario.is(Fault::ShortReceive));
    for number in 0..scenario.count {
        let sge = end.sge(number * scenario.len, len);
        let wr = RecvWr { wr_id: number as u64, sge, ..RecvWr::default() };
        end.nic.post_recv(&end.qp, &wr).expect("posted");
    }
}

/// Returns what the answering end sees after the asking end has finished.
fn answer<N: Nic + Clone>(end: &End<N>, scenario: &Scenario) -> String {
    let count = if scenario.takes_receives() { scenario.count } else { 0 };
    let timeout = if scenario.fault.is_some() { QUIET } else { TIMEOUT };
    let seen = completions(end, count, timeout);
    told(end, scenario, &seen, if scenario.fault.is_some() { 0 } else { count }, false)
}

/// Polls for up to `count` completions, for at most `timeout`.
fn completions<N: Nic + Clone>(end: &End<N>, count: usize, timeout: Duration) -> Vec<Wc> {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while seen.len() < count && start.elapsed() < timeout {
        let mut wcs = [Wc::default()];
        match end.nic.poll(&end.cq, &mut wcs).expect("polled") {
            0 => thread::yield_now(),
            _ => seen.extend(wcs),
        }
    }
    seen
}

/// Describes the completions and the changes to the end's memory.
fn told<N: Nic + Clone>(
    end: &End<N>,
    scenario: &Scenario,
    seen: &[Wc],
    expected: usize,
    asks: bool,
) -> String {
    let mut parts: Vec<(usize, String)> = Vec::new();
    for (number, wc) in seen.iter().enumerate() {
        let part = completion(number, wc);
        match parts.last_mut() {
            Some((times, last)) if *last == part => *times += 1,
            _ => parts.push((1, part)),
        }
    }
    if seen.len() < expected {
        parts.push((expected - seen.len(), "missing".to_owned()));
    }
    let memory = end.buffer.read(0, scenario.region_bytes());
    let (ours, theirs) = (content(scenario, asks), content(scenario, !asks));
    let moved = scenario.len * scenario.count;
    let memory = if memory == ours {
        "unchanged"
    } else if memory[..moved] == theirs[..moved] && memory[moved..] == ours[moved..] {
        "of the peer"
    } else {
        "mixed"
    };
    let parts = parts.iter().map(|(times, part)| format!("{times} {part}, "));
    format!("{}memory {memory}", parts.collect::<String>())
}

/// Describes the fields of a completion that have a meaning.
fn completion(number: usize, wc: &Wc) -> String {
    let mut text = status_name(wc.status).to_owned();
    if wc.wr_id != number as u64 {
        text += &format!(" of request {} instead of {number}", wc.wr_id);
    }
    if wc.status != WcStatus::SUCCESS {
        return text;
    }
    text += &format!(" opcode {}", wc.opcode.0);
    let is_receive = [WcOpcode::RECV, WcOpcode::RECV_RDMA_WITH_IMM].contains(&wc.opcode);
    if is_receive || wc.opcode == WcOpcode::RDMA_READ {
        text += &format!(" {} B", wc.byte_len);
    }
    // Linux's rxe sets the flag for completed sends too.
    if is_receive && wc.flags.contains(WcFlags::WITH_IMM) {
        text += &format!(" imm {:#x}", wc.imm_data);
    }
    text
}

/// The initial content of an end's memory.
fn content(scenario: &Scenario, asks: bool) -> Vec<u8> {
    pattern(usize::from(asks), scenario.region_bytes())
}

fn write_address(address: &Address) -> String {
    let Address { qp_num, gid, udp_port, addr, rkey } = address;
    format!("{qp_num} {gid} {udp_port} {addr} {rkey}")
}

fn read_address(line: &str) -> io::Result<Address> {
    parse_address(line).ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidData, format!("not the address of a queue pair: {line:?}"))
    })
}

fn parse_address(line: &str) -> Option<Address> {
    let mut words = line.split(' ');
    let qp_num = words.next()?.parse().ok()?;
    let gid = Gid(words.next()?.parse::<Ipv6Addr>().ok()?.octets());
    let udp_port = words.next()?.parse().ok()?;
    let addr = words.next()?.parse().ok()?;
    let rkey = words.next()?.parse().ok()?;
    words.next().is_none().then_some(Address { qp_num, gid, udp_port, addr, rkey })
}
