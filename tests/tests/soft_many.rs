//! Tests many queue pairs on one device.

use invar_core::nic::{Nic, QpCap, SendFlags, SendOpcode, SendWr, Sge, WcStatus};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};

const QPS: usize = 256;

#[test]
fn each_of_256_carries_its_own_bytes() {
    let open = |name| SoftNic::open(&SoftConfig::new(name, "[::1]:0".parse().unwrap())).unwrap();
    let nics = [open("left"), open("right")];
    let pds = [0, 1].map(|i: usize| nics[i].alloc_pd().unwrap());
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_inline_data: 0 };
    let link = Link::default();
    let pairs: Vec<[End<SoftNic>; 2]> = (0..QPS)
        .map(|_| {
            let ends = [0, 1].map(|i| End::with(&nics[i], pds[i].clone(), &cap, 32, 10_000));
            ends[0].connect(&ends[1], &link);
            ends[1].connect(&ends[0], &link);
            ends
        })
        .collect();
    let numbers: std::collections::HashSet<u32> =
        pairs.iter().map(|[a, _]| a.nic.qp_num(&a.qp)).collect();
    assert_eq!(numbers.len(), QPS);
    assert!(numbers.iter().all(|number| (2..1 << 24).contains(number)));

    for (i, [a, b]) in pairs.iter().enumerate() {
        a.buffer.memory.write_at(0, &[i as u8; 10_000]).unwrap();
        b.post_recv(i as u64, 0);
        let wr = a.work(SendOpcode::RdmaWrite, 10_000, b);
        let notice = SendWr {
            opcode: SendOpcode::RdmaWriteWithImm,
            sge: Sge::default(),
            imm_data: i as u32,
            flags: SendFlags::SIGNALED,
            ..wr
        };
        a.nic.post_send(&a.qp, &[SendWr { flags: SendFlags::empty(), ..wr }, notice]).unwrap();
    }
    for (i, [a, b]) in pairs.iter().enumerate() {
        let done = b.wait();
        assert_eq!((done.wr_id, done.imm_data), (i as u64, i as u32));
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        assert_eq!(b.buffer.read(0, 10_000), [i as u8; 10_000]);
        assert!(a.has_none() && b.has_none());
    }
}

#[test]
fn many_threads_use_one_nic_at_once() {
    let config = SoftConfig::new("soft", "[::1]:0".parse().unwrap());
    let nic = SoftNic::open(&config).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            let nic = &nic;
            scope.spawn(move || {
                let [a, b] = End::pair([nic, nic], 5000, &Link::default());
                for round in 0..20 {
                    let value = t * 20 + round;
                    a.buffer.memory.write_at(0, &[value; 5000]).unwrap();
                    a.post(&a.work(SendOpcode::RdmaWrite, 5000, &b));
                    assert_eq!(a.wait().status, WcStatus::SUCCESS);
                    assert_eq!(b.buffer.read(0, 5000), [value; 5000]);
                }
            });
        }
    });
}
