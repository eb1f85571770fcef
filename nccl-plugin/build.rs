//! How the shared library is linked.

fn main() {
    // The name by which NCCL opens it. And never unmapped: a thread of a device may still be
    // returning from its last function when the program closes the library.
    for argument in ["-soname,libnccl-net-invar.so", "-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
