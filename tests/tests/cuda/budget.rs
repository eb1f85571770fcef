//! Tests how much host memory staged messages pin, over all connections of a process.

use invar::ErrorKind;
use invar_core::staging::Trailer;
use invar_testkit::fake_cuda::{FakeCuda, calls, pinned};

use super::transfer::{CHUNK, Rig, fake};

/// The bytes of a slot. Each end asks for three slots.
const SLOT: usize = (Trailer::room(CHUNK as u32) as usize).next_multiple_of(64);

/// A stand-in with a limit of `slots` slots for the process.
fn with_slots(slots: usize) -> FakeCuda {
    fake().set("INVAR_STAGING_BYTES", (slots * SLOT).to_string())
}

#[test]
fn an_end_makes_do_with_the_slots_that_are_left() {
    with_slots(4).run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 20 * CHUNK), rig.gpu_region(0, 30 * CHUNK));
        rig.check(&from, &to);
        assert_eq!(pinned(), 4 * SLOT, "three for the receiver, one for the sender");
    });
}

#[test]
fn an_end_without_a_slot_is_refused_by_name_until_others_end() {
    with_slots(6).run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 20 * CHUNK), rig.gpu_region(0, 20 * CHUNK));
        rig.check(&from, &to);
        assert_eq!(pinned(), 6 * SLOT);
        let mut other = Rig::on(rig.device.clone());
        let error = other.recv.irecv(&[(&to, 0..CHUNK, 1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let text = format!(
            "{}: no pinned host memory is left to stage GPU memory through: {} bytes are in use in \
             this process, and {SLOT} more would be beyond INVAR_STAGING_BYTES={}; set that higher,",
            rig.device.info().name,
            6 * SLOT,
            6 * SLOT,
        );
        assert!(error.to_string().starts_with(&text), "{error}");
        assert_eq!(pinned(), 6 * SLOT);
        drop((rig.send, rig.recv));
        assert_eq!(pinned(), 0);
        other.check(&from, &to);
    });
}

#[test]
fn an_end_that_fails_to_come_to_life_leaves_its_slots_to_others() {
    with_slots(3).set("FAKE_CUDA_FAIL", "cuEventCreate=2").run(|| {
        let mut rig = Rig::new();
        let from = rig.gpu_region(0, CHUNK);
        for _ in 0..3 {
            let error = rig.send.isend(&from, 0..CHUNK, 1).unwrap_err().to_string();
            assert!(error.starts_with("cuEventCreate failed"), "{error}");
        }
        assert_eq!((calls("cuMemHostAlloc"), pinned()), (3, 0));
    });
}

#[test]
fn where_nothing_may_be_pinned_nothing_is() {
    with_slots(0).run(|| {
        let mut rig = Rig::new();
        let from = rig.gpu_region(0, CHUNK);
        let error = rig.send.isend(&from, 0..CHUNK, 1).unwrap_err().to_string();
        assert!(error.contains(" INVAR_STAGING_BYTES=0;"), "{error}");
        assert_eq!(calls("cuMemHostAlloc"), 0);
    });
}
