//! The write as an RPC with protobuf messages over HTTP/2 (gRPC, tonic), as is common for storage services.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use rackweave_core::payload::Payload;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::requests::{Blocks, Load, Measured};

/// Fields of a write's packet (docs/wire.md), as a protobuf message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteRequest {
    #[prost(uint32, tag = "1")]
    pub vssd: u32,
    #[prost(uint32, tag = "2")]
    pub set: u32,
    #[prost(uint32, tag = "3")]
    pub epoch: u32,
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    #[prost(uint64, tag = "5")]
    pub request: u64,
    #[prost(uint32, tag = "6")]
    pub volume: u32,
    #[prost(uint64, tag = "7")]
    pub first_sector: u64,
    #[prost(uint32, tag = "8")]
    pub sectors: u32,
    #[prost(bool, tag = "9")]
    pub fua: bool,
    #[prost(uint32, tag = "10")]
    pub attach: u32,
    #[prost(uint64, tag = "11")]
    pub client: u64,
    #[prost(uint64, tag = "12")]
    pub sequence: u64,
    #[prost(uint64, tag = "13")]
    pub floor: u64,
    #[prost(bytes = "bytes", tag = "14")]
    pub data: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteReply {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    #[prost(uint32, tag = "2")]
    pub status: u32,
}

const METHOD: &str = "/rackweave.Storage/Write";

#[derive(Clone, Default)]
struct Storage(Arc<Mutex<Blocks>>);

impl NamedService for Storage {
    const NAME: &'static str = "rackweave.Storage";
}

impl UnaryService<WriteRequest> for Storage {
    type Response = WriteReply;
    type Future = Ready<Result<Response<WriteReply>, Status>>;
    fn call(&mut self, request: Request<WriteRequest>) -> Self::Future {
        let w = request.into_inner();
        match self.0.lock() {
            Ok(mut blocks) => blocks.write(w.first_sector, &Payload::Bytes(w.data)),
            Err(_) => return ready(Err(Status::internal("poisoned"))),
        }
        ready(Ok(Response::new(WriteReply { request: w.request, status: 0 })))
    }
}

impl Service<http::Request<Body>> for Storage {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let storage = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented(request.uri().path()).into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).unary(storage, request).await)
        })
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Serves until the process is ended.
pub fn serve(listener: TcpListener) -> io::Result<()> {
    runtime()?.block_on(async {
        listener.set_nonblocking(true)?;
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
        let nodelay = tokio_stream::StreamExt::map(incoming, |s| s.and_then(|s| s.set_nodelay(true).map(|()| s)));
        Server::builder().add_service(Storage::default()).serve_with_incoming(nodelay).await.map_err(io::Error::other)
    })
}

async fn one(
    channel: Channel,
    load: Rc<RefCell<Load>>,
    data: Bytes,
    begin: Rc<RefCell<dyn FnMut()>>,
) -> io::Result<()> {
    let mut grpc = tonic::client::Grpc::new(channel);
    let path = http::uri::PathAndQuery::from_static(METHOD);
    loop {
        let (first_sector, request) = {
            let mut load = load.borrow_mut();
            if load.sent >= load.total() {
                return Ok(());
            }
            (load.next_sector(), load.sent)
        };
        let write = WriteRequest {
            vssd: 7,
            set: 1,
            epoch: 1,
            incarnation: 1,
            request,
            volume: 1,
            first_sector,
            sectors: data.len() as u32 / 512,
            fua: false,
            attach: 1,
            client: 1,
            sequence: request,
            floor: request.saturating_sub(1),
            data: data.clone(),
        };
        let sent = Instant::now();
        grpc.ready().await.map_err(io::Error::other)?;
        let codec: ProstCodec<WriteRequest, WriteReply> = ProstCodec::default();
        let reply = grpc.unary(Request::new(write), path.clone(), codec).await.map_err(io::Error::other)?;
        assert_eq!(reply.into_inner(), WriteReply { request, status: 0 }, "an answer");
        if load.borrow_mut().answered(sent) {
            begin.borrow_mut()();
        }
    }
}

/// Drives the load to its end with `depth` calls in flight on one connection.
pub fn drive(server: SocketAddr, load: Load, depth: u64, begin: impl FnMut() + 'static) -> io::Result<Measured> {
    let data = Bytes::from(vec![0x5a; load.bytes]);
    let load = Rc::new(RefCell::new(load));
    let begin: Rc<RefCell<dyn FnMut()>> = Rc::new(RefCell::new(begin));
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime()?, async {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).map_err(io::Error::other)?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(io::Error::other)?;
        let each = || tokio::task::spawn_local(one(channel.clone(), load.clone(), data.clone(), begin.clone()));
        let tasks: Vec<_> = (0..depth).map(|_| each()).collect();
        for t in tasks {
            t.await.map_err(io::Error::other)??;
        }
        Ok::<(), io::Error>(())
    })?;
    let load = Rc::try_unwrap(load).map_err(|_| io::Error::other("calls are left"))?;
    Ok(load.into_inner().measured())
}
