//! Work requests with several buffers.

use super::*;
use invar_core::nic::RecvWr;
use invar_linux::soft::device::SrqConfig;

const LEN: usize = 9000;

/// Creates a queue pair with room for several buffers, in state INIT.
fn create(end: &mut End) -> u32 {
    create_as(end, |config| QpConfig { send_sges_max: 3, recv_sges_max: 3, ..config })
}

/// Creates a queue pair whose configuration `change` changes, in state INIT.
fn create_as(end: &mut End, change: impl FnOnce(QpConfig) -> QpConfig) -> u32 {
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_inline_data: 64 };
    let config = change(QpConfig::new(end.pd, end.cq, cap));
    let qpn = end.device.create_qp(&config).unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let init = QpTransition::Init { pkey_index: 0, port_num: 1, access };
    end.device.modify_qp(qpn, &init).unwrap();
    qpn
}

/// Three buffers with gaps between them, in an order of their own.
fn buffers(end: &End, lens: [u32; 3]) -> [Sge; 3] {
    let starts = [20_000, 0, 10_000];
    std::array::from_fn(|i| Sge {
        addr: end.memory.addr() + starts[i],
        length: lens[i],
        lkey: end.key,
    })
}

fn bytes(end: &End, list: &[Sge]) -> Vec<u8> {
    let mut all = Vec::new();
    for sge in list {
        let mut bytes = vec![0; sge.length as usize];
        end.memory.read_at((sge.addr - end.memory.addr()) as usize, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

/// Carries packets of both ends, three of which are lost, until `a` has a completion.
fn run(a: &mut End, b: &mut End) -> (Vec<Wc>, Vec<Wc>) {
    let (mut count, mut now) = (0, 1);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut lose = move |_: &[u8]| {
        count += 1;
        [2, 5, 8].contains(&count)
    };
    for _ in 0..2000 {
        for end in [&mut *a, &mut *b] {
            end.device.handle_timers(now);
            end.transmit(now);
        }
        carry(a, b, now, &mut lose);
        carry(b, a, now, &mut lose);
        sent.extend(a.poll());
        received.extend(b.poll());
        if !sent.is_empty() {
            break;
        }
        now += 5_000_000;
    }
    (sent, received)
}

#[test]
fn messages_with_several_buffers_survive_losses_at_both_ends() {
    for opcode in [SendOpcode::Send, SendOpcode::RdmaWrite, SendOpcode::RdmaRead] {
        let [mut a, mut b] = pair("::1", 30_000, QpOptions::empty());
        let qpns = [create(&mut a), create(&mut b)];
        connect([&mut a, &mut b], qpns);
        for (end, seed) in [(&a, 1), (&b, 2)] {
            let content: Vec<u8> = (0..30_000u32).map(|i| (i * seed + i / 251) as u8).collect();
            end.memory.write_at(0, &content).unwrap();
        }
        let (from, to) = (buffers(&a, [1500, 7000, 500]), buffers(&b, [10, 2990, 6000]));
        let whole = [Sge { addr: b.memory.addr(), length: LEN as u32, lkey: b.key }];
        let (remote_addr, rkey) = target(&b);
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 7, opcode, flags, remote_addr, rkey, ..SendWr::default() };
        let expected = match opcode {
            SendOpcode::RdmaRead => bytes(&b, &whole),
            _ => bytes(&a, &from),
        };
        b.device.post_recv_list(qpns[1], &RecvWr::default(), &to).unwrap();
        a.device.post_send_list(qpns[0], &wr, &from).unwrap();
        let (sent, received) = run(&mut a, &mut b);
        assert_eq!(
            sent.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
            [(7, WcStatus::SUCCESS)]
        );
        let arrived = match opcode {
            SendOpcode::Send => bytes(&b, &to),
            SendOpcode::RdmaRead => bytes(&a, &from),
            _ => bytes(&b, &whole),
        };
        assert!(arrived == expected, "{opcode:?}");
        let lens: Vec<u32> = received.iter().map(|wc| wc.byte_len).collect();
        assert_eq!(lens, if opcode == SendOpcode::Send { vec![LEN as u32] } else { vec![] });
    }
}

#[test]
fn a_buffer_outside_of_registered_memory_fails_its_request_alone() {
    let [mut a, mut b] = pair("::1", 30_000, QpOptions::empty());
    let qpns = [create(&mut a), create(&mut b)];
    connect([&mut a, &mut b], qpns);
    let mut list = buffers(&a, [10, 10, 10]);
    list[2].addr = a.memory.addr() + 29_995;
    let (remote_addr, rkey) = target(&b);
    let flags = SendFlags::SIGNALED;
    let wr = SendWr { wr_id: 7, flags, remote_addr, rkey, ..SendWr::default() };
    a.device.post_send_list(qpns[0], &wr, &list).unwrap();
    let before = bytes(&b, &[Sge { addr: b.memory.addr(), length: 30_000, lkey: b.key }]);
    let (sent, received) = run(&mut a, &mut b);
    assert_eq!(sent.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::LOC_PROT_ERR]);
    assert!(received.is_empty());
    assert!(before == bytes(&b, &[Sge { addr: b.memory.addr(), length: 30_000, lkey: b.key }]));
    // A list that the queue pair has no room for is refused.
    let many = [list[0]; 4];
    assert_eq!(a.device.post_send_list(qpns[0], &wr, &many).unwrap_err().errno, libc::EINVAL);
    // Nothing copies its bytes at once.
    let inline = SendWr { flags: flags | SendFlags::INLINE, ..wr };
    let refused = a.device.post_send_list(qpns[0], &inline, &list[..2]).unwrap_err();
    assert_eq!(
        (refused.errno, refused.cause),
        (libc::EINVAL, "a list of buffers is not sent inline")
    );
}

#[test]
fn a_shared_receive_may_have_more_buffers_than_the_receives_of_its_queue_pair() {
    let [mut a, mut b] = pair("::1", 30_000, QpOptions::empty());
    let config = SrqConfig { pd: b.pd, receives_max: 4, sges_max: 3 };
    let srq = b.device.create_srq(&config).unwrap();
    let qpns = [create(&mut a), create_as(&mut b, |config| QpConfig { srq: Some(srq), ..config })];
    connect([&mut a, &mut b], qpns);
    let (from, to) = (buffers(&a, [1500, 7000, 500]), buffers(&b, [10, 2990, 6000]));
    b.device.post_srq_recv(srq, &RecvWr::default(), &to).unwrap();
    let (opcode, flags) = (SendOpcode::Send, SendFlags::SIGNALED);
    let wr = SendWr { opcode, flags, ..SendWr::default() };
    a.device.post_send_list(qpns[0], &wr, &from).unwrap();
    let (sent, received) = run(&mut a, &mut b);
    assert_eq!((sent[0].status, received[0].byte_len), (WcStatus::SUCCESS, LEN as u32));
    assert!(bytes(&a, &from) == bytes(&b, &to));
}

#[test]
fn a_shared_receive_has_the_memory_of_the_domain_of_its_queue_and_not_of_the_queue_pair() {
    for (sges, is_of_queue) in [(1, true), (3, true), (1, false), (3, false)] {
        let [mut a, mut b] = pair("::1", 30_000, QpOptions::empty());
        let pd = b.device.alloc_pd();
        let (memory, addr) = (b.memory.clone(), b.memory.addr());
        let of_queue = b.device.reg_mr(pd, &memory, addr, Access::LOCAL_WRITE).unwrap();
        let lkey = if is_of_queue { of_queue } else { b.key };
        let to = buffers(&b, [10, 20, 30]).map(|sge| Sge { lkey, ..sge });
        let config = SrqConfig { pd, receives_max: 1, sges_max: 3 };
        let srq = b.device.create_srq(&config).unwrap();
        b.device.post_srq_recv(srq, &RecvWr::default(), &to[..sges]).unwrap();
        let of_b = create_as(&mut b, |config| QpConfig { srq: Some(srq), ..config });
        let of_a = create(&mut a);
        connect([&mut a, &mut b], [of_a, of_b]);
        a.post(of_a, SendOpcode::Send, 10, (0, 0));
        let (sent, received) = run(&mut a, &mut b);
        let status = if is_of_queue { WcStatus::SUCCESS } else { WcStatus::LOC_PROT_ERR };
        assert_eq!(received[0].status, status, "{sges} buffers");
        assert_eq!(sent[0].status == WcStatus::SUCCESS, is_of_queue, "{sges} buffers");
    }
}
