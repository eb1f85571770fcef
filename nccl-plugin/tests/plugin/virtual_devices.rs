//! Devices that NCCL joins (`makeVDevice`), and devices that `INVAR_RAILS` joins.

use std::ffi::CStr;
use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::process::Command;
use std::time::Duration;

use invar_testkit::fake_cuda::FakeCuda;
use nccl_net_invar::abi::{MakeVDevice, PropertiesV9, PropertiesV12, VDeviceProps};
use nccl_net_invar::tables::{
    ncclCollNetPlugin_v9 as collnet, ncclNetPlugin_v11 as v11, ncclNetPlugin_v12 as v12,
};

use super::collnet_gpu::{finish, ranks_on};
use super::rig::*;

const BYTES: usize = 256 * 1024;
const MESSAGES: usize = 64;
/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u8 = 8;

/// Joins devices for the network.
fn join(devices: &[c_int]) -> Result<c_int, Code> {
    join_by(net.tail.make_v_device, devices)
}

fn join_by(make: MakeVDevice<4>, devices: &[c_int]) -> Result<c_int, Code> {
    init();
    let mut devs = [-7; 4];
    devs[..devices.len().min(4)].copy_from_slice(&devices[..devices.len().min(4)]);
    let (mut number, props) = (-1, VDeviceProps { ndevs: devices.len() as c_int, devs });
    // SAFETY: There is room for a number, and the list has its devices.
    match unsafe { make(&mut number, &props) } {
        Code::SUCCESS => Ok(number),
        code => Err(code),
    }
}

/// Begins a communicator, and returns its context.
fn communicator() -> *mut c_void {
    let mut context = ptr::null_mut();
    // SAFETY: `context` has room for a context, and NCCL may pass no configuration.
    let code = unsafe { (v11.init)(&mut context, 0, ptr::null(), None, None) };
    assert_eq!(code, Code::SUCCESS);
    context
}

/// Ends a communicator.
fn finalize(context: *mut c_void) {
    // SAFETY: The context is `init`'s, and nobody else uses it.
    assert_eq!(unsafe { (v11.tail.finalize)(context) }, Code::SUCCESS);
}

/// Connects both ends on a device.
fn pair_on(device: c_int) -> Pair {
    let listening = Listening::on(device);
    Pair::over(listening, BYTES + MESSAGES, |handle| connect_on(device, handle))
}

fn properties(device: c_int) -> PropertiesV9 {
    let mut properties = MaybeUninit::uninit();
    // SAFETY: `properties` has room for the properties.
    let code = unsafe { (net.get_properties)(device, properties.as_mut_ptr()) };
    assert_eq!(code, Code::SUCCESS);
    // SAFETY: The successful call has written the properties.
    unsafe { properties.assume_init() }
}

fn name(properties: &PropertiesV9) -> &str {
    // SAFETY: The name is a C string that stays valid.
    unsafe { CStr::from_ptr(properties.name) }.to_str().expect("text")
}

fn count() -> c_int {
    count_by(net.devices)
}

fn count_by(devices: unsafe extern "C" fn(*mut c_int) -> Code) -> c_int {
    init();
    let mut ndev = 0;
    // SAFETY: `ndev` has room for a number.
    assert_eq!(unsafe { devices(&mut ndev) }, Code::SUCCESS);
    ndev
}

fn four_devices() -> FakeCuda {
    // An end that stops its queue pairs first lets requests of the other end fail.
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_STRICT", "0");
    fake.set("NULL_VERBS_DEVICES", "4")
}

/// Sends messages one after another, and calls `between` before each.
fn exchange(pair: &Pair, mut between: impl FnMut(usize)) {
    for number in 0..MESSAGES {
        between(number);
        let length = BYTES - number;
        pair.to.iter().zip(0..).for_each(|(byte, _)| {
            // SAFETY: No transfer is under way, and the memory is of this pair alone.
            unsafe { ptr::from_ref(byte).cast_mut().write_volatile(0) };
        });
        // While rails join and leave, a receive finds no request.
        let received = until("a request", || {
            let (code, request) = pair.irecv(&[(0, length, 3)]);
            assert_eq!(code, Code::SUCCESS);
            (!request.is_null()).then_some(request)
        });
        let sent = pair.send(number, length, 3);
        assert_eq!(wait(&[sent, received])[1][0], length as c_int);
        assert!(pair.to[..length] == pair.from[number..number + length], "message {number}");
    }
}

#[test]
fn joined_devices_are_one_with_the_speed_of_all() {
    four_devices().run(|| {
        assert_eq!(count(), 4);
        let both = join(&[1, 3]).expect("two devices");
        // NCCL takes the difference of the counts for the number of joined devices.
        assert_eq!((both, count()), (4, 5), "the devices that exist keep their numbers");
        assert_eq!(join(&[1, 3]), Ok(4), "the same devices are the same device");
        assert_eq!((join(&[2, 0]), count()), (Ok(5), 6));
        let told = properties(both);
        assert_eq!(name(&told), "null1+null3");
        assert_eq!((told.speed, told.ptr_support), (400_000, properties(1).ptr_support));
        assert_eq!((told.v_props.ndevs, &told.v_props.devs[..2]), (2, &[1, 3][..]));
        // The first versions of NCCL that join devices make their single devices so too.
        assert_eq!((join(&[2]), count()), (Ok(6), 7));
        let single = properties(6);
        assert_eq!((name(&single), single.v_props.ndevs, single.v_props.devs[0]), ("null2", 1, 2));
        for refused in [&[][..], &[0, 4], &[0, -1], &[0, 0], &[0, 1, 2, 3, 0]] {
            assert!(join(refused).is_err(), "{refused:?}");
        }
        // The newest version lists up to eight.
        let mut newest = MaybeUninit::<PropertiesV12>::uninit();
        let (mut number, mut devs) = (-1, [-7; 8]);
        devs[..4].copy_from_slice(&[0, 1, 2, 3]);
        // SAFETY: There is room for a number and for the properties, and the list has its devices.
        let newest = unsafe {
            let all = VDeviceProps { ndevs: 4, devs };
            assert_eq!((v12.tail.make_v_device)(&mut number, &all), Code::SUCCESS);
            assert_eq!((v12.get_properties)(number, newest.as_mut_ptr()), Code::SUCCESS);
            newest.assume_init()
        };
        assert_eq!((newest.speed, newest.v_props.ndevs), (800_000, 4));
        let pair = pair_on(both);
        exchange(&pair, |_| {});
    });
}

/// Adds up numbers by collNet on a device.
fn add_up_on(device: c_int) {
    ranks_on(device, |rank| {
        let mut memory = vec![rank.rank as u32 + 1; BYTES / 4];
        let registered = rank.register(&mut memory);
        let (code, request) = rank.start(registered, registered);
        assert_eq!(code, Code::SUCCESS);
        finish(&[request]);
        assert_eq!(memory, vec![3; BYTES / 4]);
    });
}

#[test]
fn collnet_runs_on_joined_devices() {
    four_devices().run(|| {
        let both = join(&[1, 3]).expect("two devices");
        add_up_on(both);
    });
}

/// NCCL takes the first answer of `devices` for the number of physical devices, and joins them for
/// collNet, then for the network.
#[test]
fn collnet_joins_the_devices_of_the_network_and_counts_its_own() {
    four_devices().run(|| {
        let join_for_collnet = |devices: &[c_int]| join_by(collnet.tail, devices);
        let counts = || [count_by(collnet.devices), count()];
        assert_eq!(counts(), [4, 4]);
        let both = join_for_collnet(&[1, 3]).expect("two devices");
        assert_eq!((both, counts()), (4, [5, 4]));
        assert_eq!((join(&[1, 3]), counts()), (Ok(both), [5, 5]));
        assert_eq!((join_for_collnet(&[0, 2]), counts()), (Ok(5), [6, 5]));
        let mut told = MaybeUninit::uninit();
        // SAFETY: There is room for the properties.
        let told = unsafe {
            assert_eq!((collnet.get_properties)(both, told.as_mut_ptr()), Code::SUCCESS);
            told.assume_init()
        };
        assert_eq!((name(&told), told.v_props.ndevs), ("null1+null3", 2));
        add_up_on(both);
        assert!(join_for_collnet(&[0, 4]).is_err());
        // A second NCCL begins, and counts anew.
        // SAFETY: The calls pass no logger.
        unsafe {
            assert_eq!((v11.tail.finalize)(init()), Code::SUCCESS);
            assert_eq!((net.init)(None), Code::SUCCESS);
            assert_eq!((collnet.init)(None), Code::SUCCESS);
        }
        assert_eq!(counts(), [4, 4]);
        assert_eq!((join_for_collnet(&[1, 3]), counts()), (Ok(both), [5, 4]));
    });
}

#[test]
fn joined_devices_keep_their_numbers_when_a_second_nccl_begins() {
    four_devices().run(|| {
        // Tables before v11 have no contexts.
        finalize(init());
        // SAFETY: The calls pass no logger.
        let begin = || unsafe { (net.init)(None) };
        assert_eq!(begin(), Code::SUCCESS);
        let both = join(&[1, 3]).expect("two devices");
        assert_eq!(begin(), Code::SUCCESS);
        assert_eq!(name(&properties(both)), "null1+null3");
        assert_eq!((count(), join(&[1, 3]), count()), (4, Ok(both), 5));
    });
}

#[test]
fn joined_devices_keep_their_numbers_after_the_last_communicator() {
    four_devices().run(|| {
        let context = init();
        let both = join(&[1, 3]).expect("two devices");
        finalize(context);
        // NCCL keeps the plugin, and the numbers that it knows.
        let context = communicator();
        assert_eq!(name(&properties(both)), "null1+null3");
        let pair = pair_on(both);
        exchange(&pair, |_| {});
        drop(pair);
        finalize(context);
        // NCCL has forgotten the plugin, and counts anew.
        communicator();
        assert_eq!((count(), join(&[1, 3]), count()), (4, Ok(both), 5));
    });
}

#[test]
fn a_user_may_keep_nccl_from_joining() {
    four_devices().set("NCCL_IB_MERGE_NICS", "0").run(|| {
        assert_eq!(join(&[0, 1]), Err(Code::INVALID_USAGE));
        assert_eq!((join(&[1]), count()), (Ok(4), 5));
    });
}

#[test]
fn messages_go_on_after_the_end_of_one_of_two_joined_devices() {
    let pipes = tempfile::tempdir().expect("a directory");
    let fake = four_devices().set("NULL_VERBS_EVENTS", pipes.path().display().to_string());
    if !invar_testkit::child::is_here() {
        let all = (0..4).map(|number| pipes.path().join(format!("null{number}")));
        assert!(Command::new("mkfifo").args(all).status().expect("mkfifo").success());
    }
    fake.run(|| {
        let pipes = std::env::var("NULL_VERBS_EVENTS").expect("the directory");
        let pair = pair_on(join(&[0, 1]).expect("two devices"));
        exchange(&pair, |number| {
            if number == MESSAGES / 2 {
                let mut events = fs::OpenOptions::new()
                    .write(true)
                    .open(format!("{pipes}/null0"))
                    .expect("the pipe");
                events.write_all(&[DEVICE_FATAL]).expect("an event");
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    });
}

#[test]
fn a_device_with_a_standby_rail_has_the_speed_of_the_other() {
    four_devices().set("INVAR_RAILS", "null0/null2").run(|| {
        assert_eq!(count(), 3);
        let told = properties(0);
        assert_eq!((name(&told), told.speed), ("null0/null2", 200_000));
        exchange(&Pair::new(BYTES + MESSAGES), |_| {});
    });
}

#[test]
fn the_devices_that_a_user_joins_are_one_for_nccl() {
    four_devices().set("INVAR_RAILS", "null0+null2").run(|| {
        assert_eq!(count(), 3);
        let told = properties(0);
        assert_eq!((name(&told), told.speed), ("null0+null2", 400_000));
        assert_eq!((told.v_props.ndevs, told.v_props.devs[0]), (1, 0));
        exchange(&Pair::new(BYTES + MESSAGES), |_| {});
    });
}
