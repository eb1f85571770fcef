//! Checks what transfers move: bytes, immediates and their order.

use std::sync::atomic::Ordering;

use invar_core::nic::{
    Memory, Nic, QpOptions, SendFlags, SendOpcode, SendWr, Sge, Wc, WcFlags, WcOpcode,
};

use super::{Bench, Check, Verdict, ensure, equal, poll};
use crate::end::{End, Link};
use crate::pattern::pattern;

pub(super) fn checks<N: Nic + Clone>() -> Vec<Check<N>> {
    vec![
        ("every operation moves its bytes at every size", sizes),
        (
            "every operation moves its bytes in adaptive-routing mode, if both ports have it",
            sizes_adaptive,
        ),
        (
            "every operation moves its bytes in longer packets than the verbs have, if both ports can",
            sizes_long,
        ),
        ("bytes move between any two offsets", offsets),
        ("immediates pass through unchanged", immediates),
        ("an unsignaled request makes no completion", unsignaled),
        ("an immediate comes after all that was written before it", ordering),
        ("inline bytes are taken while posting", inline),
        ("a slot is whole once its last word is there", slots),
        ("a queue pair connected to itself reads", loopback),
    ]
}

const OPCODES: [SendOpcode; 5] = [
    SendOpcode::RdmaWrite,
    SendOpcode::RdmaWriteWithImm,
    SendOpcode::Send,
    SendOpcode::SendWithImm,
    SendOpcode::RdmaRead,
];
const GUARD: usize = 64;

fn sizes<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let link = bench.link()?;
    all_sizes(bench, &link)
}

fn sizes_adaptive<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let mut link = bench.link()?;
    for nic in bench.nics() {
        let port = nic.query_port().map_err(|error| error.to_string())?;
        if !port.options.contains(QpOptions::ADAPTIVE_ROUTING) {
            return Ok(());
        }
    }
    link.options |= QpOptions::ADAPTIVE_ROUTING;
    all_sizes(bench, &link)
}

fn sizes_long<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let mut link = Link { long_mtu_bytes: u32::MAX, ..bench.link()? };
    for nic in bench.nics() {
        let port = nic.query_port().map_err(|error| error.to_string())?;
        link.long_mtu_bytes = link.long_mtu_bytes.min(port.long_mtu_bytes);
    }
    if link.long_mtu_bytes == 0 {
        return Ok(());
    }
    all_sizes(bench, &link)?;
    link.options |= QpOptions::ADAPTIVE_ROUTING;
    all_sizes(bench, &link)
}

fn all_sizes<N: Nic + Clone>(bench: &mut Bench<N>, link: &Link) -> Verdict {
    let mtu = link.mtu.bytes().max(link.long_mtu_bytes) as usize;
    // A length of three packets less 16 bytes may take exactly three packets.
    let sizes = [0, 1, 7, mtu - 1, mtu, mtu + 1, 3 * mtu - 16, 3 * mtu, 64 << 10];
    transfers(bench, link, &sizes)
}

/// Moves messages of these sizes by every operation, and a short one inline by each that can do so.
pub(super) fn transfers<N: Nic + Clone>(
    bench: &mut Bench<N>,
    link: &Link,
    sizes: &[usize],
) -> Verdict {
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let ends = End::pair(bench.nics(), longest.max(64) + GUARD, link);
    for opcode in OPCODES {
        let plain = sizes.iter().map(|len| (*len, SendFlags::empty()));
        let inline = (opcode != SendOpcode::RdmaRead).then_some((33, SendFlags::INLINE));
        for (len, flags) in plain.chain(inline) {
            transfer(bench, &ends, opcode, len, flags)
                .map_err(|error| format!("{opcode:?} of {len}, {flags:?}: {error}"))?;
        }
    }
    Ok(())
}

/// Moves `len` bytes, and checks that no other byte changes.
fn transfer<N: Nic + Clone>(
    bench: &mut Bench<N>,
    [a, b]: &[End<N>; 2],
    opcode: SendOpcode,
    len: usize,
    flags: SendFlags,
) -> Verdict {
    let (here, there) = (pattern(len, len + GUARD), pattern(len + 1, len + GUARD));
    a.buffer.write(0, &here);
    b.buffer.write(0, &there);
    let wr = SendWr { flags: flags | SendFlags::SIGNALED, ..a.work(opcode, len, b) };
    let received = match opcode {
        SendOpcode::RdmaWrite | SendOpcode::RdmaRead => None,
        SendOpcode::RdmaWriteWithImm => Some((WcOpcode::RECV_RDMA_WITH_IMM, true)),
        SendOpcode::Send | SendOpcode::SendWithInv => Some((WcOpcode::RECV, false)),
        SendOpcode::SendWithImm => Some((WcOpcode::RECV, true)),
    };
    if received.is_some() {
        b.post_recv(5, len);
    }
    a.post(&wr);
    let done = bench.success(a, "the send", wr.wr_id)?;
    let opcode_done = match opcode {
        SendOpcode::RdmaRead => WcOpcode::RDMA_READ,
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteWithImm => WcOpcode::RDMA_WRITE,
        SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => WcOpcode::SEND,
    };
    equal("opcode of the send", done.opcode, opcode_done)?;
    if let Some((opcode, with_imm)) = received {
        let done = bench.success(b, "the receive", 5)?;
        equal(
            "opcode and immediate",
            (done.opcode, done.flags.contains(WcFlags::WITH_IMM)),
            (opcode, with_imm),
        )?;
        equal("bytes received", done.byte_len as usize, len)?;
        ensure!(!with_imm || done.imm_data == wr.imm_data, "immediate {:#x}", done.imm_data);
    }
    if opcode == SendOpcode::RdmaRead {
        equal("bytes read", done.byte_len as usize, len)?;
        ensure!(a.buffer.read(0, len) == there[..len], "other bytes were read");
        ensure!(a.buffer.read(len, GUARD) == here[len..], "bytes behind were written");
        ensure!(b.buffer.read(0, len + GUARD) == there, "the buffer that was read has changed");
    } else {
        ensure!(b.buffer.read(0, len) == here[..len], "other bytes arrived");
        ensure!(b.buffer.read(len, GUARD) == there[len..], "bytes behind were written");
        ensure!(a.buffer.read(0, len + GUARD) == here, "the sender's buffer has changed");
    }
    for end in [a, b] {
        equal("further completions", poll(end, &mut [Wc::default()])?, 0)?;
    }
    Ok(())
}

fn offsets<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(8192)?;
    a.buffer.write(0, &pattern(1, 8192));
    for (from, to) in [(0, 1), (1, 0), (3, 7), (4093, 4099), (17, 1024)] {
        for len in [1, 8, 64, 1000, 2049] {
            b.buffer.write(0, &vec![0xee; 8192]);
            let wr = a.work(SendOpcode::RdmaWrite, len, b);
            let sge = a.sge(from, len);
            a.post(&SendWr { sge, remote_addr: b.buffer.addr(to), ..wr });
            bench.success(a, "a write", wr.wr_id)?;
            ensure!(
                b.buffer.read(to, len) == a.buffer.read(from, len)
                    && b.buffer.read(0, to).iter().all(|&byte| byte == 0xee)
                    && b.buffer.read(to + len, 64) == [0xee; 64],
                "{len} bytes from offset {from} to {to} arrived changed"
            );
        }
    }
    Ok(())
}

fn immediates<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    for imm_data in [0, 1, 0x0102_0304, 0xff00_00ff, u32::MAX] {
        for opcode in [SendOpcode::RdmaWriteWithImm, SendOpcode::SendWithImm] {
            b.post_recv(imm_data.into(), 0);
            a.post(&SendWr { imm_data, ..a.work(opcode, 0, b) });
            let wc = bench.success(b, "a receive", imm_data.into())?;
            equal("immediate", wc.imm_data, imm_data)?;
        }
    }
    Ok(())
}

fn unsignaled<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64)?;
    let wr = a.work(SendOpcode::RdmaWrite, 8, b);
    let silent = SendWr { flags: SendFlags::empty(), wr_id: 1, ..wr };
    for _ in 0..10 {
        a.nic.post_send(&a.qp, &[silent, silent]).map_err(|error| error.to_string())?;
        a.post(&wr);
        bench.success(a, "the signaled one of three", wr.wr_id)?;
    }
    bench.quiet(a, "unsignaled requests")?;
    bench.quiet(b, "writes without immediate at their target")
}

fn ordering<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(64 << 10)?;
    for round in 0..20 {
        let bytes = pattern(round, 64 << 10);
        a.buffer.write(0, &bytes);
        // Write many times to one place. The last write must win.
        let mut wrs: Vec<SendWr> = (0..16)
            .map(|i| {
                let sge = a.sge(i * 4096, 4096);
                let flags = SendFlags::empty();
                SendWr { sge, flags, ..a.work(SendOpcode::RdmaWrite, 4096, b) }
            })
            .collect();
        wrs.push(SendWr { wr_id: 9, ..a.work(SendOpcode::RdmaWriteWithImm, 0, b) });
        b.post_recv(round as u64, 0);
        a.nic.post_send(&a.qp, &wrs).map_err(|error| error.to_string())?;
        bench.success(b, "the immediate", round as u64)?;
        ensure!(b.buffer.read(0, 4096) == bytes[15 * 4096..], "the last write is not there");
        bench.success(a, "the immediate's sender", 9)?;
    }
    Ok(())
}

fn inline<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(4096)?;
    // Without a receive the requests wait. The NIC must not read their bytes again meanwhile.
    for i in 0..8u8 {
        let len = usize::from(i) * 4 + 1;
        a.buffer.write(0, &[i + 1; 64]);
        let wr = a.work(SendOpcode::RdmaWriteWithImm, len, b);
        let remote_addr = b.buffer.addr(usize::from(i) * 64);
        a.post(&SendWr {
            wr_id: i.into(),
            remote_addr,
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            ..wr
        });
    }
    a.buffer.write(0, &[0xdd; 64]);
    for i in 0..8u8 {
        b.post_recv(i.into(), 0);
        bench.success(b, "a receive of inline bytes", i.into())?;
        bench.success(a, "an inline request", i.into())?;
        let (at, len) = (usize::from(i) * 64, usize::from(i) * 4 + 1);
        let got = b.buffer.read(at, len + 1);
        ensure!(got[..len] == vec![i + 1; len] && got[len] == 0, "{len} inline bytes are {got:?}");
    }
    Ok(())
}

/// Writes slots like those of a FIFO: 32 bytes each, whose last word the receiver polls without any
/// completion.
fn slots<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let [a, b] = &bench.pair(4096)?;
    for idx in 1..=400u64 {
        let row = idx as usize % 16 * 32;
        let words: [u64; 4] = [idx.wrapping_mul(3), idx << 32, !idx, idx];
        a.buffer.write(row, &words.map(u64::to_ne_bytes).concat());
        let wr = SendWr {
            sge: a.sge(row, 32),
            remote_addr: b.buffer.addr(row),
            flags: if idx % 16 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() },
            wr_id: idx,
            ..a.work(SendOpcode::RdmaWrite, 32, b)
        };
        a.post(&wr);
        let seen = |at: usize| b.buffer.memory.words()[row / 8 + at].load(Ordering::Acquire);
        bench.await_some("a slot", || Ok((seen(3) == idx).then_some(())))?;
        equal(
            "the words before the last",
            [seen(0), seen(1), seen(2)],
            words[..3].try_into().unwrap(),
        )?;
        if idx % 16 == 0 {
            bench.success(a, "a signaled slot", idx)?;
        }
    }
    Ok(())
}

fn loopback<N: Nic + Clone>(bench: &mut Bench<N>) -> Verdict {
    let link = bench.link()?;
    let end = End::new(bench.nics()[0], 256);
    end.connect(&end, &link);
    end.buffer.write(0, &pattern(3, 256));
    for i in 0..100 {
        let sge = Sge { length: 1, ..end.sge(200, 1) };
        let remote_addr = end.buffer.addr(i);
        end.post(&SendWr { wr_id: 4, sge, remote_addr, ..end.work(SendOpcode::RdmaRead, 1, &end) });
        bench.success(&end, "a read of one's own memory", 4)?;
        equal("the byte read", end.buffer.read(200, 1), end.buffer.read(i, 1))?;
    }
    Ok(())
}
