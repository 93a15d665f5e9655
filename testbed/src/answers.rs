//! A server of any protocol in which the client begins: it always sends the same answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Starts a server that answers each line of a client with `answer`, and stays silent until it has received a line. The
/// server ends with the process. Returns its address.
///
/// # Errors
///
/// If no port is free.
pub fn answers(answer: &'static [u8]) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, answer));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream, answer: &[u8]) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if bytes[..count].contains(&b'\n') && stream.write_all(answer).is_err() {
            return;
        }
    }
}
