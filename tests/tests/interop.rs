//! Runs the table of scenarios that compares kinds of NICs on two software NICs.

use std::net::TcpListener;
use std::thread;

use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::interop::{self, Control, Table};

/// The lines that one process prints. The connecting side is another device on this host.
fn seen(table: Table) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let open = || SoftNic::open(&SoftConfig::new("soft", "[::1]:0".parse().unwrap())).unwrap();
    let (here, there) = (open(), open());
    let other = thread::spawn(move || {
        let mut control = Control::accept(&listener).unwrap();
        interop::run(&there, &mut control, table, Vec::new()).unwrap();
    });
    let mut lines = Vec::new();
    interop::run(&here, &mut Control::connect(addr).unwrap(), table, &mut lines).unwrap();
    other.join().unwrap();
    String::from_utf8(lines).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn every_transfer_succeeds_and_moves_its_bytes_to_just_one_side() {
    let lines = seen(Table::Transfers);
    assert_eq!(lines.len(), 2 * Table::Transfers.scenarios().len());
    for line in &lines {
        assert!(!line.contains("_ERR") && !line.contains("missing"), "{line}");
        let moved = line.matches("memory of the peer").count();
        assert_eq!(moved, usize::from(!line.contains(" of 0 B")), "{line}");
        assert!(!line.contains("mixed"), "{line}");
    }
}

#[test]
fn every_fault_but_a_late_receive_ends_the_connection_with_its_status() {
    let lines = seen(Table::Faults);
    assert_eq!(lines.len(), 2 * Table::Faults.scenarios().len());
    for line in &lines {
        let status = [
            ("RemoteKey", "1 REM_ACCESS_ERR, 1 WR_FLUSH_ERR"),
            ("RemoteRange", "1 REM_ACCESS_ERR, 1 WR_FLUSH_ERR"),
            ("RemoteRights", "1 REM_ACCESS_ERR, 1 WR_FLUSH_ERR"),
            ("ShortReceive", "1 REM_OP_ERR, 1 WR_FLUSH_ERR"),
            ("LateReceive", "SUCCESS"),
            ("NoReceive", "1 RNR_RETRY_EXC_ERR, 1 WR_FLUSH_ERR"),
            ("NoQueuePair", "1 RETRY_EXC_ERR, 1 WR_FLUSH_ERR"),
        ];
        let (_, status) = status.iter().find(|(fault, _)| line.contains(fault)).unwrap();
        assert!(line.contains(status), "{line}");
    }
}
