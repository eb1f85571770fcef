//! A tracer is told exactly the work that was posted for a transfer.

use invar_core::comm::{RecvBuf, Request, Work};
use invar_core::conn::CommSettings;
use invar_core::nic::{SendOpcode, SendWr};

use crate::line::Line;

const ROOM: usize = 8192;

fn connected(qps: u16) -> Line {
    let settings = CommSettings { qps, ar_threshold_bytes: 4096, ..CommSettings::default() };
    Line::with([settings; 2], ROOM)
}

fn irecv(line: &mut Line, n: u32) -> Request {
    let bufs: Vec<RecvBuf> = (0..n).map(|tag| line.to.room(0, ROOM as u32, tag)).collect();
    line.duo.irecv(&bufs)
}

fn isend(line: &mut Line, len: u32, tag: u32) -> Request {
    line.duo.isend(&line.from.message(0, len), tag)
}

fn work_of(line: &mut Line, sent: &Request) -> Option<Vec<Work>> {
    Some(line.duo.send.work(sent)?.collect())
}

/// The requests that the sender has posted since the last call of this function.
fn posted(line: &Line) -> Vec<(u32, SendWr)> {
    line.nics[0].plan.posted.take()
}

fn work((qpn, wr): &(u32, SendWr)) -> Work {
    Work { qpn: *qpn, wr_id: wr.wr_id, opcode: Some(wr.opcode), length: wr.sge.length }
}

#[test]
fn a_message_is_carried_by_the_first_work_request_on_each_queue_pair() {
    for (qps, len) in
        [1, 4].iter().flat_map(|qps| [0, 1, 128, 129, 1000, 5000].map(|len| (*qps, len)))
    {
        let mut line = connected(qps);
        let _ = irecv(&mut line, 1);
        let sent = isend(&mut line, len, 0);
        let mut posted = posted(&line);
        posted.dedup_by_key(|(qpn, _)| *qpn);
        let told = work_of(&mut line, &sent).expect("it is posted");
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
        let mut line = connected(qps);
        let _ = irecv(&mut line, 3);
        let first = isend(&mut line, 1000, 0);
        let second = isend(&mut line, 0, 1);
        assert_eq!((work_of(&mut line, &first), work_of(&mut line, &second)), (None, None));
        let third = isend(&mut line, 300, 2);
        let told =
            [first, second, third].map(|sent| work_of(&mut line, &sent).expect("it is posted"));
        let bytes = told.each_ref().map(|work| work.iter().map(|work| work.length).sum::<u32>());
        assert_eq!(bytes, [1000, 0, 300]);
        assert!(told.iter().all(|work| work.len() == usize::from(qps)));
        let mut told = told.concat();
        told.retain(|work| work.length > 0);
        told.sort_by_key(|work| work.qpn);
        let is_write = |posted: &(u32, SendWr)| posted.1.opcode == SendOpcode::RdmaWrite;
        let writes = posted(&line).into_iter().filter(is_write);
        assert_eq!(told, writes.map(|posted| work(&posted)).collect::<Vec<_>>(), "over {qps}");
        // The next message is a single one again.
        let _ = irecv(&mut line, 1);
        let alone = isend(&mut line, 8, 0);
        let told = work_of(&mut line, &alone).expect("it is posted");
        assert_eq!(told, posted(&line).iter().map(work).collect::<Vec<_>>());
    }
}

#[test]
fn a_receive_awaits_one_work_request_on_each_queue_pair() {
    let mut line = connected(3);
    for n in [1, 8] {
        let received = irecv(&mut line, n);
        let told: Vec<Work> = line.duo.recv.work(&received).collect();
        // The write of the receive's slots has this number.
        let wr_id = line.nics[1].plan.posted.borrow().last().expect("slots").1.wr_id;
        let work = |qpn| Work { qpn, wr_id, opcode: None, length: 0 };
        assert_eq!(told, line.duo.recv.qpns().map(work).collect::<Vec<_>>());
    }
}
