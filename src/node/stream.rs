//! Byte streams that replace TCP connections in a simulated network.

use std::sync::Arc;

/// A byte stream that the Redis driver can use as a connection.
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// A function that opens a stream to a host and port. Simulations use such a function instead of TCP connections.
pub type Dial = Arc<
    dyn Fn(&str, u16) -> crate::runtime::BoxFuture<std::io::Result<Box<dyn Stream>>> + Send + Sync,
>;
