//! Streams that replace TCP connections in a simulated network.

use std::sync::Arc;

/// A connection as the Redis driver uses it.
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Opens a connection to a host and port, replacing TCP in a simulated network.
pub type Dial = Arc<
    dyn Fn(&str, u16) -> crate::runtime::BoxFuture<std::io::Result<Box<dyn Stream>>> + Send + Sync,
>;
