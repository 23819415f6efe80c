//! The code that confines the processes of a warm jail, with raw system calls only.
//!
//! Some jail setup runs in two kinds of processes: those forked by the launcher, and those forked by a warm
//! interpreter (a zygote). A zygote contains none of Belljar's code except a small shared object, which has
//! neither the standard library nor an allocator. The code that both need lives here.
//!
//! | module | purpose |
//! |---|---|
//! | [`syscall`] | raw system calls |
//! | [`privileges`] | drops ids, capabilities and privileges |
//! | [`payload`] | unpacks files into the workspace |
//! | [`mounts`] | mounts that every jail has over its root tree |
//! | [`message`], [`packet_socket`] | messages between the launcher, a zygote and its children |
//! | [`install_filter`] | installs a seccomp filter |
//! | `flags` | flags of the kernel's interface that several modules use |
//! | `vfork` | runs an intermediate process that shares this process's memory |
//! | [`build_jail`], [`pid1`] | builds a warm jail; used only by the launcher's jail builders |
//! | [`clone_into_jail`], `child_setup` | clones a zygote's child into a jail, and confines it |
//! | [`interpreter`] | the part of a zygote that is the same for every language |
//!
//! The shared objects are crates of their own that use this one: `src/python` and `src/node`, each with the
//! script that loads it. The build script of `belljar-jail` compiles them.
#![no_std]
#![cfg(target_os = "linux")]

pub mod build_jail;
mod child_setup;
pub mod clone_into_jail;
mod flags;
pub mod install_filter;
pub mod interpreter;
pub mod message;
pub mod mounts;
pub mod packet_socket;
pub mod payload;
pub mod pid1;
pub mod privileges;
pub mod syscall;
mod vfork;
