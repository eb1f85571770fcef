//! A tracer is told exactly the work that was posted for a transfer.

use invar_core::comm::{RecvBuf, Request, SendBuf, Work};
use invar_core::conn::CommSettings;
use invar_core::nic::{SendOpcode, SendWr};
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

const ROOM: usize = 8192;

struct Traced {
    duo: Duo<Meddler>,
    nics: [Meddler; 2],
    from: Buffer<Meddler>,
    to: Buffer<Meddler>,
}

impl Traced {
    fn new(qps: u16) -> Self {
        let nics: [NullNic; 2] = NullNic::ports();
        let nics @ [a, b] = &nics.map(Meddler::new);
        let settings = CommSettings { qps, ar_threshold_bytes: 4096, ..CommSettings::default() };
        let duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
        let from = Buffer::new(a, &duo.send_pd, ROOM);
        let to = Buffer::new(b, &duo.recv_pd, ROOM);
        Traced { duo, nics: nics.clone(), from, to }
    }

    fn irecv(&mut self, n: u32) -> Request {
        let room = |tag| {
            let (addr, rkey) = (self.to.addr(0), self.to.rkey());
            RecvBuf { addr, len: ROOM as u32, tag, rkey }
        };
        let bufs: Vec<RecvBuf> = (0..n).map(room).collect();
        self.duo.recv.irecv(&bufs).expect("irecv").expect("a request")
    }

    fn isend(&mut self, len: u32, tag: u32) -> Request {
        let buf = SendBuf { addr: self.from.addr(0), len, lkey: self.from.lkey() };
        self.duo.send.isend(&buf, tag).expect("isend").expect("a request")
    }

    fn work(&mut self, sent: &Request) -> Option<Vec<Work>> {
        Some(self.duo.send.work(sent)?.collect())
    }

    /// The requests that the sender has posted since the last call of this function.
    fn posted(&self) -> Vec<(u32, SendWr)> {
        self.nics[0].plan.posted.take()
    }
}

fn work((qpn, wr): &(u32, SendWr)) -> Work {
    Work { qpn: *qpn, wr_id: wr.wr_id, opcode: Some(wr.opcode), length: wr.sge.length }
}

#[test]
fn a_message_is_carried_by_the_first_work_request_on_each_queue_pair() {
    for (qps, len) in
        [1, 4].iter().flat_map(|qps| [0, 1, 128, 129, 1000, 5000].map(|len| (*qps, len)))
    {
        let mut traced = Traced::new(qps);
        let _ = traced.irecv(1);
        let sent = traced.isend(len, 0);
        let mut posted = traced.posted();
        posted.dedup_by_key(|(qpn, _)| *qpn);
        let told = traced.work(&sent).expect("it is posted");
        assert_eq!(told, posted.iter().map(work).collect::<Vec<_>>(), "{len} bytes over {qps}");
        assert_eq!(
            (told.len(), told.iter().map(|work| work.length).sum::<u32>()),
            (usize::from(qps), len)
        );
    }
}

#[test]
fn of_a_group_each_message_is_carried_by_writes_once_all_are_there() {
    for qps in [1, 4] {
        let mut traced = Traced::new(qps);
        let _ = traced.irecv(3);
        let first = traced.isend(1000, 0);
        let second = traced.isend(0, 1);
        assert_eq!((traced.work(&first), traced.work(&second)), (None, None));
        let third = traced.isend(300, 2);
        let told = [first, second, third].map(|sent| traced.work(&sent).expect("it is posted"));
        let bytes = told.each_ref().map(|work| work.iter().map(|work| work.length).sum::<u32>());
        assert_eq!(bytes, [1000, 0, 300]);
        assert!(told.iter().all(|work| work.len() == usize::from(qps)));
        let mut told = told.concat();
        told.retain(|work| work.length > 0);
        told.sort_by_key(|work| work.qpn);
        let is_write = |posted: &(u32, SendWr)| posted.1.opcode == SendOpcode::RdmaWrite;
        let writes = traced.posted().into_iter().filter(is_write);
        assert_eq!(told, writes.map(|posted| work(&posted)).collect::<Vec<_>>(), "over {qps}");
        // The next message is a single one again.
        let _ = traced.irecv(1);
        let alone = traced.isend(8, 0);
        let told = traced.work(&alone).expect("it is posted");
        assert_eq!(told, traced.posted().iter().map(work).collect::<Vec<_>>());
    }
}

#[test]
fn a_receive_awaits_one_work_request_on_each_queue_pair() {
    let mut traced = Traced::new(3);
    for n in [1, 8] {
        let received = traced.irecv(n);
        let told: Vec<Work> = traced.duo.recv.work(&received).collect();
        // The write of the receive's slots has this number.
        let wr_id = traced.nics[1].plan.posted.borrow().last().expect("slots").1.wr_id;
        let work = |qpn| Work { qpn, wr_id, opcode: None, length: 0 };
        assert_eq!(told, traced.duo.recv.qpns().map(work).collect::<Vec<_>>());
    }
}
