//! The versions of the library's symbols, as rdma-core assigns them. A program that was linked to
//! rdma-core's library asks for a symbol of a version.

/// Gives exported symbols of this module versions of `libibverbs.map`. The assembler wants the symbols and
/// their versions in one object file, and the compiler puts each module into one.
macro_rules! versions {
    ($($version:literal: $($name:ident)*;)*) => { $($(
        std::arch::global_asm!(concat!(
            ".symver ", stringify!($name), ", ", stringify!($name), "@@", $version
        ));
    )*)* };
}

/// Gives exported symbols of this module the private versions of all generations of rdma-core, which changes
/// the name of that version when a driver's interface changes.
macro_rules! private_versions {
    ($($name:ident)*) => {
        versions! { "IBVERBS_PRIVATE_34": $($name)*; }
        $(
            std::arch::global_asm!(
                concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_57"),
                concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_59"),
            );
        )*
    };
}

/// Exports functions that read no argument and always return the same.
macro_rules! constant_functions {
    ($($($name:ident)* -> $type:ty: $result:expr;)*) => { $($(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> $type {
            $result
        }
    )*)* };
}

/// Exports functions that read no argument and do nothing.
macro_rules! empty_functions {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )* };
}
