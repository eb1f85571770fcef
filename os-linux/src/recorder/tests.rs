use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use invar_core::recorder::MessageTimes;
use invar_core::stall::{EndView, Role};

use super::*;

/// A directory that only this user can read, as a recorder demands.
fn private() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap()
}

fn record(begun: u64) -> Record {
    let view = EndView { process: Process::new(7, "a"), begun, ..EndView::default() };
    Record::new(Role::Receiver, 3, "ends", view, begun)
}

#[test]
fn a_reader_finds_the_last_records_and_whether_the_process_lives() {
    let dir = private();
    let process = Process::new(4711, "node");
    let mut file = RecorderFile::create(dir.path(), process).unwrap();
    let [first, second] = [file.take_place().unwrap(), file.take_place().unwrap()];
    file.write(first, |turn| record(1).to_bytes(turn)).unwrap();
    file.write(second, |turn| record(2).to_bytes(turn)).unwrap();
    file.write(first, |turn| record(3).to_bytes(turn)).unwrap();
    let path = dir.path().join("4711.rec");
    let recorded = read(&path).unwrap();
    assert_eq!(recorded.header.process, process);
    assert!(recorded.is_alive && recorded.damaged == 0);
    assert_eq!(recorded.records, [(0, record(3)), (1, record(2))]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // A process that is killed closes the file and does not remove it.
    let copy = dir.path().join("2.rec");
    fs::copy(&path, &copy).unwrap();
    assert!(!read(&copy).unwrap().is_alive);
    drop(file);
    assert!(!path.exists());
}

#[test]
fn damage_is_counted_and_what_is_no_recorder_is_refused() {
    let dir = private();
    let mut file = RecorderFile::create(dir.path(), Process::new(1, "a")).unwrap();
    for begun in 0..2 {
        let place = file.take_place().unwrap();
        file.write(place, |turn| record(begun).to_bytes(turn)).unwrap();
    }
    let copy = dir.path().join("2.rec");
    let mut bytes = fs::read(dir.path().join("1.rec")).unwrap();
    bytes.truncate(bytes.len() - 9);
    fs::write(&copy, &bytes).unwrap();
    let recorded = read(&copy).unwrap();
    assert_eq!((recorded.records.len(), recorded.damaged), (1, 1));
    fs::write(&copy, b"nothing").unwrap();
    assert!(read(&copy).unwrap_err().to_string().contains("no file of Invar's flight recorder"));
    assert!(read(dir.path()).is_err());
}

#[test]
fn another_user_has_no_more_read_than_64_mib_and_the_own_files_are_all_read() {
    let dir = private();
    let header =
        Header { process: Process::new(7, "a"), unix_offset_ns: 0, memory: Default::default() };
    let paths: Vec<PathBuf> = (0..6).map(|pid| dir.path().join(format!("{pid}.rec"))).collect();
    for path in &paths {
        let file = File::create(path).unwrap();
        file.write_all_at(&header.to_bytes(), 0).unwrap();
        file.set_len((PLACE_BYTES * (1 + PLACES)) as u64).unwrap();
    }
    let own = Reader::of_this_user();
    let other = Reader { user: own.user + 1, ..Reader::of_this_user() };
    // No record has messages, so only the first page of each place is read.
    let each_allowed = OTHERS_BYTES_MAX as usize / (PAGE_BYTES * (1 + PLACES));
    for (mut reader, allowed) in [(own, paths.len()), (other, each_allowed)] {
        let read = paths.iter().filter(|path| reader.read(path).is_ok()).count();
        assert_eq!((read, reader.left_out()), (allowed, paths.len() - allowed));
    }
}

#[test]
fn a_reader_counts_the_pages_of_messages_only_where_there_are_messages() {
    let dir = private();
    let mut file = RecorderFile::create(dir.path(), Process::new(1, "a")).unwrap();
    let path = dir.path().join("1.rec");
    let place = file.take_place().unwrap();
    let own = Reader::of_this_user().user;
    let mut record = record(1);
    // The header, the record, and then the messages too.
    for pages in [2, 3] {
        file.write(place, |turn| record.to_bytes(turn)).unwrap();
        for (budget, left_out) in [(pages, 0), (pages - 1, 1)] {
            let left = HashMap::from([(own, (budget * PAGE_BYTES) as u64)]);
            let mut reader = Reader { user: own + 1, left, left_out: 0 };
            let read = reader.read(&path).ok().map(|recorded| recorded.records);
            assert_eq!(read, (left_out == 0).then(|| vec![(place, record.clone())]));
            assert_eq!(reader.left_out(), left_out);
        }
        record.note_messages(&[MessageTimes::default()]);
    }
}

#[test]
fn messages_are_read_with_their_record_and_not_with_a_later_one_of_the_same_place() {
    let dir = private();
    let mut file = RecorderFile::create(dir.path(), Process::new(1, "a")).unwrap();
    let path = dir.path().join("1.rec");
    let place = file.take_place().unwrap();
    let mut timed = record(1);
    timed.note_messages(&[MessageTimes { number: 9, done_ns: Some(5), ..MessageTimes::default() }]);
    file.write(place, |turn| timed.to_bytes(turn)).unwrap();
    assert_eq!(read(&path).unwrap().records, [(0, timed.clone())]);
    // A writer that was killed between the pages has written the record and not its messages.
    let torn = dir.path().join("2.rec");
    fs::copy(&path, &torn).unwrap();
    let newer = timed.to_bytes(99);
    let copy = OpenOptions::new().write(true).open(&torn).unwrap();
    copy.write_all_at(&newer[..RECORD_BYTES], PLACE_BYTES as u64).unwrap();
    let is_whole_without_messages = || {
        let recorded = read(&torn).unwrap();
        recorded.records == [(0, record(1))] && recorded.damaged == 0
    };
    assert!(is_whole_without_messages());
    // The file ends within the messages.
    copy.write_all_at(&timed.to_bytes(1), PLACE_BYTES as u64).unwrap();
    copy.set_len((PLACE_BYTES + RECORD_BYTES_MAX - 8) as u64).unwrap();
    assert!(is_whole_without_messages());
    file.write(place, |turn| record(2).to_bytes(turn)).unwrap();
    assert_eq!(read(&path).unwrap().records, [(0, record(2))]);
}

#[test]
fn a_link_is_neither_listed_nor_read() {
    let dir = private();
    let file = RecorderFile::create(dir.path(), Process::new(4711, "node")).unwrap();
    let link = dir.path().join("4712.rec");
    symlink(&file.path, &link).unwrap();
    assert_eq!(files_in(dir.path()), std::slice::from_ref(&file.path));
    assert!(read(&file.path).is_ok());
    assert_eq!(read(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn a_file_is_named_after_its_process_and_others_can_put_no_file_beside_it() {
    let process = |name: &str| process_of(Path::new(name));
    assert_eq!(["/a/4711.rec", "4711-3.rec"].map(process), [Some(4711), Some(4711)]);
    assert_eq!(["\u{1b}[2J.rec", "1.rec\n2", "1-x.rec", "1", "-1.rec"].map(process), [None; 5]);
    let dir = private();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(owner_alone(dir.path()).unwrap(), Some(uid));
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    assert_eq!(owner_alone(&link).unwrap(), None);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(owner_alone(dir.path()).unwrap(), None);
}

#[test]
fn a_directory_that_others_can_use_is_refused() {
    let dir = private();
    let process = Process::new(1, "a");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        RecorderFile::create(dir.path(), process).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    assert!(RecorderFile::create(&link, process).is_err());
}

#[test]
fn two_processes_of_one_number_have_files_of_their_own_and_old_dead_files_go() {
    let dir = private();
    for number in 0..DEAD_KEPT + 3 {
        fs::write(dir.path().join(format!("{}.rec", 100 + number)), b"").unwrap();
    }
    let process = Process::new(9, "a");
    let first = RecorderFile::create(dir.path(), process).unwrap();
    let second = RecorderFile::create(dir.path(), process).unwrap();
    assert_eq!(second.path, dir.path().join("9-1.rec"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), DEAD_KEPT + 2);
    drop(first);
    assert!(second.path.exists());
}

#[test]
fn the_place_that_ended_first_is_taken_once_all_are_in_use() {
    let dir = private();
    let mut file = RecorderFile::create(dir.path(), Process::new(1, "a")).unwrap();
    assert!((0..PLACES).all(|place| file.take_place() == Some(place)));
    assert_eq!(file.take_place(), None);
    [9, 5].into_iter().for_each(|place| file.give_back(place));
    assert_eq!([(); 3].map(|()| file.take_place()), [Some(9), Some(5), None]);
}

#[test]
fn a_file_grows_with_the_open_connections_and_not_with_all_that_ever_were() {
    let dir = private();
    let mut file = RecorderFile::create(dir.path(), Process::new(1, "a")).unwrap();
    let path = dir.path().join("1.rec");
    let open = |file: &mut RecorderFile| {
        let place = file.take_place().unwrap();
        file.write(place, |turn| record(place as u64).to_bytes(turn)).unwrap();
        place
    };
    for _ in 0..2 * PLACES_KEPT {
        let place = open(&mut file);
        file.give_back(place);
    }
    assert_eq!(read(&path).unwrap().records.len(), PLACES_KEPT);
    let all: Vec<usize> = (0..PLACES).map(|_| open(&mut file)).collect();
    let recorded = read(&path).unwrap();
    assert_eq!((recorded.records.len(), recorded.damaged), (all.len(), 0));
    assert_eq!(recorded.records[PLACES - 1], (PLACES - 1, record(PLACES as u64 - 1)));
    assert!(fs::metadata(&path).unwrap().len() <= (PLACE_BYTES * (1 + PLACES)) as u64);
}
