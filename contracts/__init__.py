"""The types that the parts of Aerie share. No torch, no HTTP, no policy: every other package may import this one.

config    a deployment's settings, from YAML and `key=value`           -> everyone
messages  what crosses between server and scheduler, one id at a time
wire      how those messages travel: msgpack over private Unix sockets
step      what crosses between scheduler and device: plans, outputs, the Worker and Lane protocols
sampling  how a request wants its tokens chosen, and the key of its Gumbel noise
errors    what can go wrong, each with its HTTP status and code
"""
