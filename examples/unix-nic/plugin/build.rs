//! How the shared library is linked.

fn main() {
    // The name by which NCCL opens it with NCCL_NET_PLUGIN=unix. NCCL may close the library while a
    // thread still returns from its last function, so the library is never unmapped.
    for argument in ["-soname,libnccl-net-unix.so", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
