//! A server whose keys are those of the memory master. It executes the commands of operators with the server half of the
//! wire, as the server in the simulation does. So the contract cases compare both with real servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quorate::node::Node;
use quorate::node::memory::MemoryNode;
use quorate::node::{ChangeOrder, ChangeSeen, NodeName, Reply, Request, Subscriber};
use quorate::runtime::BoxFuture;
use quorate::testing::OperatorScript;
use quorate::testing::server_half::{self, OperatorCommand};
use quorate_contract::TestedMaster;

use crate::support::{secs, settings};

/// The run id that the server reports.
const RUN_ID: &str = "memory-1";

/// The uptime that the server reports, in seconds.
const UPTIME: u64 = 1_000;

/// A running server. Its threads end when it is dropped.
struct MemoryServer {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl MemoryServer {
    fn start(master: MemoryNode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
        let address = listener
            .local_addr()
            .expect("the listener must have an address");
        let is_stopped = Arc::new(AtomicBool::new(false));
        let must_stop = is_stopped.clone();
        let accept_all = move || {
            for stream in listener.incoming() {
                if must_stop.load(Ordering::Relaxed) {
                    return;
                }
                let master = master.clone();
                let stream = stream.expect("the connection must be accepted");
                // The thread ends when the client closes the connection.
                std::thread::spawn(move || serve(stream, &master));
            }
        };
        Self {
            address,
            is_stopped,
            listener: Some(std::thread::spawn(accept_all)),
        }
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // The listener notices the end at the next connection.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Executes the commands of one connection, until the client closes it.
fn serve(mut stream: TcpStream, master: &MemoryNode) {
    let (mut unread, mut buffer) = (Vec::new(), [0; 4_096]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        unread.extend_from_slice(&buffer[..length]);
        let mut out = Vec::new();
        while let Some((words, length)) = server_half::command(&unread) {
            execute(&words, master, &mut out);
            unread.drain(..length);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

fn execute(words: &[&[u8]], master: &MemoryNode, out: &mut Vec<u8>) {
    if let Some(command) = OperatorCommand::parse(words, OperatorScript::from_digest) {
        return master.with_master(|master, now| command.execute(master, now, out));
    }
    match words {
        [b"HELLO", ..] => out.extend_from_slice(b"%1\r\n+proto\r\n:3\r\n"),
        [b"CLIENT", b"SETNAME", _] => out.extend_from_slice(b"+OK\r\n"),
        [b"CLIENT", b"LIST"] => server_half::bulk(Some(b""), out),
        [b"INFO", ..] => {
            let info = format!("run_id:{RUN_ID}\r\nuptime_in_seconds:{UPTIME}\r\n");
            server_half::bulk(Some(info.as_bytes()), out);
        }
        [b"SCRIPT", b"LOAD", source] => {
            let script = OperatorScript::from_source(source).expect("a script of an operator");
            server_half::bulk(Some(script.digest().as_bytes()), out);
        }
        words => panic!(
            "an operator must not send this command: {}",
            words.concat().escape_ascii()
        ),
    }
}

/// A node that sends the orders of operators to the server. The server runs as long as the node exists.
struct ServedNode {
    node: Arc<dyn Node>,
    _server: MemoryServer,
}

impl Node for ServedNode {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        self.node.send(request, reply);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.node.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.node.idle()
    }

    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        self.node.change(order)
    }
}

/// The memory master as a master under test, which receives the orders of operators over a connection.
pub(crate) fn memory_server() -> TestedMaster {
    let master = MemoryNode::new("memory");
    let server = MemoryServer::start(master.clone());
    let settings = settings([""; 0]).connect_timeout(secs(10));
    let url = format!("redis://{}", server.address);
    let node = quorate::testing::connect(&url, &settings).expect("the address must be valid");
    let node = ServedNode {
        node,
        _server: server,
    };
    TestedMaster::memory_behind(Arc::new(node), master)
}
