//! Sends and receives packets with descriptors attached.

use crate::message::MAX_FDS;
use crate::syscall::{EINTR, ESRCH, SysResult, number, syscall};

const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const MSG_NOSIGNAL: usize = 0x4000;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

#[repr(C)]
struct IoVec {
    start: usize,
    len: usize,
}

#[repr(C)]
struct MsgHeader {
    name: usize,
    name_len: u32,
    slices: *const IoVec,
    slices_len: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

#[repr(C)]
struct ControlMessage {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; MAX_FDS],
}

/// A received packet.
pub struct Packet {
    /// Its length.
    pub bytes: usize,
    /// The attached descriptors.
    pub fds: [i32; MAX_FDS],
    /// How many of them there are.
    pub fds_len: usize,
}

const CONTROL_HEADER_BYTES: usize = size_of::<usize>() + 2 * size_of::<i32>();

/// Sends a packet made of two pieces, with descriptors attached.
pub fn send(socket: i32, head: &[u8], tail: &[u8], fds: &[i32]) -> SysResult<()> {
    let piece = |bytes: &[u8]| IoVec { start: bytes.as_ptr() as usize, len: bytes.len() };
    let slices = [piece(head), piece(tail)];
    let len = CONTROL_HEADER_BYTES + size_of_val(fds);
    let mut control = ControlMessage { len, level: SOL_SOCKET, kind: SCM_RIGHTS, fds: [0; MAX_FDS] };
    control.fds[..fds.len()].copy_from_slice(fds);
    let header = MsgHeader {
        name: 0,
        name_len: 0,
        slices: slices.as_ptr(),
        slices_len: slices.len(),
        control: if fds.is_empty() { 0 } else { &raw const control as usize },
        // The kernel expects this length to be aligned to a word.
        control_len: if fds.is_empty() { 0 } else { len.next_multiple_of(size_of::<usize>()) },
        flags: 0,
    };
    loop {
        let arguments = [socket as usize, &raw const header as usize, MSG_NOSIGNAL, 0, 0, 0];
        // SAFETY: header, slices and control live across the call, and their lengths are correct.
        match unsafe { syscall(number::SENDMSG, arguments) } {
            Ok(_) => return Ok(()),
            Err(EINTR) => {}
            Err(refused) => return Err(refused),
        }
    }
}

/// Receives a packet. Fails with `ESRCH` if the peer closed the connection.
pub fn receive(socket: i32, buffer: &mut [u8]) -> SysResult<Packet> {
    let slice = IoVec { start: buffer.as_mut_ptr() as usize, len: buffer.len() };
    let mut control = ControlMessage { len: 0, level: 0, kind: 0, fds: [0; MAX_FDS] };
    let mut header = MsgHeader {
        name: 0,
        name_len: 0,
        slices: &raw const slice,
        slices_len: 1,
        control: &raw mut control as usize,
        control_len: size_of::<ControlMessage>(),
        flags: 0,
    };
    let bytes = loop {
        let arguments = [socket as usize, &raw mut header as usize, MSG_CMSG_CLOEXEC, 0, 0, 0];
        // SAFETY: header, slice and control live across the call, and their lengths are correct.
        match unsafe { syscall(number::RECVMSG, arguments) } {
            Ok(0) => return Err(ESRCH),
            Ok(bytes) => break bytes,
            Err(EINTR) => {}
            Err(refused) => return Err(refused),
        }
    };
    // SAFETY: `control` is a live local; the read is volatile because the kernel, not the compiler, wrote it.
    let control = unsafe { (&raw const control).read_volatile() };
    let any = header.control_len >= CONTROL_HEADER_BYTES
        && control.level == SOL_SOCKET
        && control.kind == SCM_RIGHTS;
    let fds_len = if any { (control.len - CONTROL_HEADER_BYTES) / size_of::<i32>() } else { 0 };
    Ok(Packet { bytes, fds: control.fds, fds_len: fds_len.min(MAX_FDS) })
}
