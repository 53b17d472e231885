// rabbit-hole, the HTTP client of Terraform's provider and the topology operator, against a broker: one function per
// subject; prints passed and failed functions.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"

	rabbithole "github.com/michaelklishin/rabbit-hole/v2"
)

const vhost = "rabbit/hole"

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("got %#v, wanted %#v", got, want))
	}
}

func truth(holds bool, what string) {
	if !holds {
		panic(what)
	}
}

func status(response *http.Response, err error, wanted ...int) {
	if err != nil {
		panic(err)
	}
	for _, code := range wanted {
		if response.StatusCode == code {
			return
		}
	}
	panic(fmt.Sprintf("status %d, wanted %v", response.StatusCode, wanted))
}

func refused(err error, code int) {
	var answered rabbithole.ErrorResponse
	if !errors.As(err, &answered) {
		panic(fmt.Sprintf("no error of the API but %v", err))
	}
	equal(answered.StatusCode, code)
}

func find[T any](items []T, is func(T) bool) T {
	for _, item := range items {
		if is(item) {
			return item
		}
	}
	panic("not in the list")
}

func overview(client *rabbithole.Client) {
	found := must(client.Overview())
	truth(found.ManagementVersion != "" && found.RabbitMQVersion != "" && found.Node != "", "versions")
	truth(found.ObjectTotals.Exchanges >= 7, "exchanges")
	equal(must(client.Whoami()).Name, "guest")
	truth(must(client.GetClusterName()).Name != "", "cluster name")
	truth(len(must(client.EnabledProtocols())) > 0, "protocols")
	truth(len(must(client.ProtocolPorts())) > 0, "ports")
}

func nodes(client *rabbithole.Client) {
	listed := must(client.ListNodes())
	equal(len(listed), 1)
	found := must(client.GetNode(listed[0].Name))
	truth(found.IsRunning && found.MemUsed > 0 && found.FdTotal > 0 && found.DiskFree > 0, "figures of the node")
}

func health(client *rabbithole.Client) {
	equal(must(client.HealthCheckAlarms()).Status, "ok")
	equal(must(client.HealthCheckLocalAlarms()).Status, "ok")
	equal(must(client.HealthCheckVirtualHosts()).Status, "ok")
	equal(must(client.HealthCheckNodeIsQuorumCritical()).Status, "ok")
	equal(must(client.HealthCheckNodeIsMirrorSyncCritical()).Status, "ok")
	equal(must(client.HealthCheckCertificateExpiration(1, rabbithole.DAYS)).Status, "ok")
	equal(must(client.HealthCheckProtocolListener(rabbithole.AMQP)).Status, "ok")
	port := must(strconv.Atoi(os.Getenv("LEVERET_PORT")))
	equal(must(client.HealthCheckPortListener(uint(port))).Status, "ok")
	equal(must(client.HealthCheckPortListener(1)).Status, "failed")
}

func vhosts(client *rabbithole.Client) {
	settings := rabbithole.VhostSettings{Description: "made by Go", DefaultQueueType: "quorum", Tags: []string{"a", "b"}}
	response, err := client.PutVhost("rabbit.go", settings)
	status(response, err, 201)
	response, err = client.PutVhost("rabbit.go", settings)
	status(response, err, 204)
	found := must(client.GetVhost("rabbit.go"))
	equal(found.Description, "made by Go")
	equal(found.DefaultQueueType, "quorum")
	equal([]string(found.Tags), []string{"a", "b"})
	find(must(client.ListVhosts()), func(item rabbithole.VhostInfo) bool { return item.Name == "rabbit.go" })
	response, err = client.PutVhostLimits("rabbit.go", rabbithole.VhostLimitsValues{"max-connections": 7, "max-queues": 8})
	status(response, err, 201, 204)
	limits := must(client.GetVhostLimits("rabbit.go"))
	equal(limits[0].Value, rabbithole.VhostLimitsValues{"max-connections": 7, "max-queues": 8})
	must(client.GetAllVhostLimits())
	response, err = client.DeleteVhostLimits("rabbit.go", rabbithole.VhostLimits{"max-connections", "max-queues"})
	status(response, err, 204)
	equal(len(must(client.ListVhostConnections("rabbit.go"))), 0)
	response, err = client.DeleteVhost("rabbit.go")
	status(response, err, 204)
	_, err = client.GetVhost("rabbit.go")
	refused(err, 404)
}

func users(client *rabbithole.Client) {
	hash := rabbithole.Base64EncodedSaltedPasswordHashSHA256("secret")
	settings := rabbithole.UserSettings{
		Tags: rabbithole.UserTags{"policymaker", "management"}, PasswordHash: hash,
		HashingAlgorithm: rabbithole.HashingAlgorithmSHA256,
	}
	response, err := client.PutUser("gopher", settings)
	status(response, err, 201)
	found := must(client.GetUser("gopher"))
	equal(found.PasswordHash, hash)
	equal(found.Tags, rabbithole.UserTags{"policymaker", "management"})
	own := must(rabbithole.NewClient(client.Endpoint, "gopher", "secret"))
	equal(must(own.Whoami()).Name, "gopher")
	_, err = own.ListUsers()
	truth(err != nil, "a list of users without the tag")
	response, err = client.PutUserLimits("gopher", rabbithole.UserLimitsValues{"max-connections": 3})
	status(response, err, 201, 204)
	equal(must(client.GetUserLimits("gopher"))[0].Value, rabbithole.UserLimitsValues{"max-connections": 3})
	response, err = client.DeleteUserLimits("gopher", rabbithole.UserLimits{"max-connections"})
	status(response, err, 204)
	must(client.GetAllUserLimits())
	response, err = client.PutUserWithoutPassword("gopher2", rabbithole.UserSettings{Tags: rabbithole.UserTags{}})
	status(response, err, 201)
	for _, name := range []string{"gopher", "gopher2"} {
		response, err = client.DeleteUser(name)
		status(response, err, 204)
	}
	_, err = client.GetUser("gopher")
	refused(err, 404)
}

func permissions(client *rabbithole.Client) {
	response, err := client.PutUser("permitted", rabbithole.UserSettings{Password: "x", Tags: rabbithole.UserTags{}})
	status(response, err, 201)
	response, err = client.UpdatePermissionsIn(vhost, "permitted", rabbithole.Permissions{Configure: "^a", Write: "^b", Read: ".*"})
	status(response, err, 201)
	found := must(client.GetPermissionsIn(vhost, "permitted"))
	equal([]string{found.Configure, found.Write, found.Read}, []string{"^a", "^b", ".*"})
	equal(len(must(client.ListPermissionsOf("permitted"))), 1)
	must(client.ListPermissions())
	topics := rabbithole.TopicPermissions{Exchange: "amq.topic", Write: "^w", Read: "^r"}
	response, err = client.UpdateTopicPermissionsIn(vhost, "permitted", topics)
	status(response, err, 201)
	equal(must(client.GetTopicPermissionsIn(vhost, "permitted"))[0].Write, "^w")
	equal(len(must(client.ListTopicPermissionsOf("permitted"))), 1)
	must(client.ListTopicPermissions())
	response, err = client.DeleteTopicPermissionsIn(vhost, "permitted", "amq.topic")
	status(response, err, 204)
	response, err = client.ClearPermissionsIn(vhost, "permitted")
	status(response, err, 204)
	_, err = client.GetPermissionsIn(vhost, "permitted")
	refused(err, 404)
	response, err = client.DeleteUser("permitted")
	status(response, err, 204)
}

func exchanges(client *rabbithole.Client) {
	settings := rabbithole.ExchangeSettings{Type: "topic", Durable: true, Arguments: map[string]interface{}{"alternate-exchange": "amq.fanout"}}
	response, err := client.DeclareExchange(vhost, "an/exchange", settings)
	status(response, err, 201)
	response, err = client.DeclareExchange(vhost, "an/exchange", settings)
	status(response, err, 204)
	found := must(client.GetExchange(vhost, "an/exchange"))
	equal(found.Type, "topic")
	equal(found.Arguments, settings.Arguments)
	_, err = client.DeclareExchange(vhost, "an/exchange", rabbithole.ExchangeSettings{Type: "direct", Durable: true})
	refused(err, 400)
	must(client.ListExchanges())
	find(must(client.ListExchangesIn(vhost)), func(item rabbithole.ExchangeInfo) bool { return item.Name == "an/exchange" })
	response, err = client.DeleteExchange(vhost, "an/exchange")
	status(response, err, 204)
}

func queues(client *rabbithole.Client) {
	settings := rabbithole.QueueSettings{Type: "classic", Durable: true, Arguments: map[string]interface{}{"x-max-length": 10.0}}
	response, err := client.DeclareQueue(vhost, "a/queue", settings)
	status(response, err, 201)
	found := must(client.GetQueue(vhost, "a/queue"))
	equal([]any{found.Durable, found.Messages, found.Type}, []any{true, 0, "classic"})
	equal(found.Arguments["x-max-length"], 10.0)
	must(client.GetQueueWithParameters(vhost, "a/queue", url.Values{"lengths_age": {"60"}, "lengths_incr": {"5"}}))
	must(client.ListQueues())
	must(client.ListQueuesWithParameters(url.Values{"sort": {"name"}}))
	equal(len(must(client.ListQueuesIn(vhost))), 1)
	paged := must(client.PagedListQueuesWithParametersIn(vhost, url.Values{"page": {"1"}, "name": {"queue"}}))
	equal([]int{paged.Page, paged.TotalCount, paged.FilteredCount, len(paged.Items)}, []int{1, 1, 1, 1})
	must(client.PagedListQueuesWithParameters(url.Values{"page": {"1"}}))
	response, err = client.SyncQueue(vhost, "a/queue")
	status(response, err, 200, 204)
	response, err = client.CancelSyncQueue(vhost, "a/queue")
	status(response, err, 200, 204)
	response, err = client.PurgeQueue(vhost, "a/queue")
	status(response, err, 204)
	response, err = client.DeleteQueue(vhost, "a/queue", rabbithole.QueueDeleteOptions{IfEmpty: true, IfUnused: true})
	status(response, err, 204)
	_, err = client.GetQueue(vhost, "a/queue")
	refused(err, 404)
}

func bindings(client *rabbithole.Client) {
	response, err := client.DeclareQueue(vhost, "bound", rabbithole.QueueSettings{Durable: true})
	status(response, err, 201)
	wanted := []rabbithole.BindingInfo{
		{Source: "amq.topic", Destination: "bound", DestinationType: "queue", RoutingKey: "a.#/~ b"},
		{Source: "amq.headers", Destination: "bound", DestinationType: "queue", Arguments: map[string]interface{}{"x-match": "all", "n": 1}},
		{Source: "amq.fanout", Destination: "amq.direct", DestinationType: "exchange"},
	}
	for _, binding := range wanted {
		response, err = client.DeclareBinding(vhost, binding)
		status(response, err, 201)
	}
	between := must(client.ListQueueBindingsBetween(vhost, "amq.topic", "bound"))
	equal(between[0].RoutingKey, "a.#/~ b")
	equal(len(must(client.ListQueueBindings(vhost, "bound"))), 3)
	equal(len(must(client.ListExchangeBindingsWithSource(vhost, "amq.fanout"))), 1)
	equal(len(must(client.ListExchangeBindingsWithDestination(vhost, "amq.direct"))), 1)
	equal(len(must(client.ListExchangeBindingsBetween(vhost, "amq.fanout", "amq.direct"))), 1)
	must(client.ListBindings())
	// Terraform's provider deletes a binding by the properties_key that it has read.
	for _, binding := range must(client.ListBindingsIn(vhost)) {
		if binding.Source != "" {
			response, err = client.DeleteBinding(vhost, binding)
			status(response, err, 204)
		}
	}
	equal(len(must(client.ListBindingsIn(vhost))), 1)
	response, err = client.DeleteQueue(vhost, "bound")
	status(response, err, 204)
}

func policies(client *rabbithole.Client) {
	policy := rabbithole.Policy{
		Pattern: "^limited", ApplyTo: "queues", Priority: 3, Definition: rabbithole.PolicyDefinition{"max-length": 5.0},
	}
	response, err := client.PutPolicy(vhost, "short", policy)
	status(response, err, 201)
	found := must(client.GetPolicy(vhost, "short"))
	equal([]any{found.Pattern, found.ApplyTo, found.Priority, found.Definition}, []any{"^limited", "queues", 3, policy.Definition})
	equal(len(must(client.ListPoliciesIn(vhost))), 1)
	must(client.ListPolicies())
	response, err = client.DeletePolicy(vhost, "short")
	status(response, err, 204)
	operator := rabbithole.OperatorPolicy{Pattern: ".*", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"expires": 60000.0}}
	response, err = client.PutOperatorPolicy(vhost, "expiring", operator)
	status(response, err, 201)
	equal(must(client.GetOperatorPolicy(vhost, "expiring")).Definition, operator.Definition)
	equal(len(must(client.ListOperatorPoliciesIn(vhost))), 1)
	must(client.ListOperatorPolicies())
	response, err = client.DeleteOperatorPolicy(vhost, "expiring")
	status(response, err, 204)
}

func parameters(client *rabbithole.Client) {
	response, err := client.PutRuntimeParameter("vhost-limits", vhost, "limits", map[string]int{"max-queues": 100})
	status(response, err, 201)
	found := must(client.GetRuntimeParameter("vhost-limits", vhost, "limits"))
	equal(found.Value, map[string]interface{}{"max-queues": 100.0})
	must(client.ListRuntimeParameters())
	must(client.ListRuntimeParametersFor("vhost-limits"))
	equal(len(must(client.ListRuntimeParametersIn("vhost-limits", vhost))), 1)
	response, err = client.DeleteRuntimeParameter("vhost-limits", vhost, "limits")
	status(response, err, 204)
	response, err = client.PutGlobalParameter("global", []string{"a"})
	status(response, err, 201)
	equal(must(client.GetGlobalParameter("global")).Value, []interface{}{"a"})
	must(client.ListGlobalParameters())
	response, err = client.DeleteGlobalParameter("global")
	status(response, err, 204)
}

func definitions(client *rabbithole.Client) {
	response, err := client.DeclareQueue(vhost, "defined", rabbithole.QueueSettings{Durable: true})
	status(response, err, 201)
	exported := must(client.ListDefinitions())
	truth(exported.Queues != nil && exported.Vhosts != nil, "parts of the definitions")
	inVhost := must(client.ListVhostDefinitions(vhost))
	response, err = client.DeleteQueue(vhost, "defined")
	status(response, err, 204)
	response, err = client.UploadVhostDefinitions(inVhost, vhost)
	status(response, err, 200, 201, 204)
	must(client.GetQueue(vhost, "defined"))
	// The client sends permissions without their user, and an empty hash for users without one, which removes the password.
	exported.Permissions, exported.Users = nil, nil
	response, err = client.UploadDefinitions(exported)
	status(response, err, 200, 201, 204)
	response, err = client.DeleteQueue(vhost, "defined")
	status(response, err, 204)
}

func connections(client *rabbithole.Client) {
	must(client.ListConnections())
	must(client.ListConnectionsOfUser("guest"))
	must(client.ListChannels())
	must(client.ListConsumers())
	must(client.ListConsumersIn(vhost))
	_, err := client.GetConnection("missing")
	refused(err, 404)
	_, err = client.GetChannel("missing")
	refused(err, 404)
}

func plugins(client *rabbithole.Client) {
	equal(len(must(client.ListFeatureFlags())), 8)
	equal(len(must(client.ListShovels())), 0)
	equal(len(must(client.ListFederationUpstreams())), 0)
	equal(len(must(client.ListFederationLinks())), 0)
}

func run(name string, subject func(*rabbithole.Client), client *rabbithole.Client) (passed bool) {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Printf("FAILED %s: %v\n%s\n", name, problem, debug.Stack())
		}
	}()
	subject(client)
	fmt.Println("ok", name)
	return true
}

func main() {
	client := must(rabbithole.NewClient(os.Getenv("LEVERET_HTTP_URL"), "guest", "guest"))
	response, err := client.PutVhost(vhost, rabbithole.VhostSettings{})
	status(response, err, 201)
	response, err = client.UpdatePermissionsIn(vhost, "guest", rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"})
	status(response, err, 201, 204)
	subjects := []struct {
		name    string
		subject func(*rabbithole.Client)
	}{
		{"overview", overview}, {"nodes", nodes}, {"health", health}, {"vhosts", vhosts}, {"users", users},
		{"permissions", permissions}, {"exchanges", exchanges}, {"queues", queues}, {"bindings", bindings},
		{"policies", policies}, {"parameters", parameters}, {"definitions", definitions},
		{"connections", connections}, {"plugins", plugins},
	}
	passed := 0
	for _, item := range subjects {
		if run(item.name, item.subject, client) {
			passed++
		}
	}
	response, err = client.DeleteVhost(vhost)
	status(response, err, 204)
	fmt.Println(passed, "of", len(subjects), "passed")
	if passed < len(subjects) {
		os.Exit(1)
	}
}
