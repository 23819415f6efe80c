//! Connections to the sandbox's loopback interface. Each direction ends independently.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::channel::{ChannelReceiver, ChannelSender, GuestChannel};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{Failure, FailureKind, GuestReply};

pub(super) async fn connect(port: u16, channel: &mut GuestChannel) -> Result<GuestReply, Failure> {
    let failed = |error: std::io::Error| {
        let mut failure = Failure::from_io(&error, format!("port {port}"));
        if failure.kind == FailureKind::Refused {
            failure.message = "no program listens on this port".to_owned();
        }
        failure
    };
    let mut stream = match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(stream) => stream,
        Err(error) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.map_err(|_| failed(error))?,
    };
    // The sender has already batched its writes.
    let _best_effort = stream.set_nodelay(true);
    channel.sender.answer(&GuestReply::Ok);
    let (reader, writer) = stream.split();
    let (inward, outward) =
        tokio::join!(send_in(&mut channel.receiver, writer), send_out(reader, &channel.sender));
    outward.map_err(failed)??;
    inward.map_err(failed)?;
    Ok(GuestReply::Ok)
}

async fn send_in(receiver: &mut ChannelReceiver, mut writer: WriteHalf<'_>) -> std::io::Result<()> {
    let mut broken = false;
    while let Some(bytes) = receiver.next().await {
        // A program that stopped reading may still write: the remaining input is discarded.
        broken = broken || writer.write_all(&bytes).await.is_err();
    }
    if broken { Ok(()) } else { writer.shutdown().await }
}

async fn send_out(mut reader: ReadHalf<'_>, sender: &ChannelSender) -> std::io::Result<Result<(), Failure>> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = reader.read(&mut buffer).await?;
        if len == 0 {
            sender.end();
            return Ok(Ok(()));
        }
        // An exact-size copy: the send queue accounts for the length of a buffer, not its capacity.
        if let Err(failure) = sender.data(buffer[..len].to_vec()).await {
            return Ok(Err(failure));
        }
    }
}
